// Programs for Python: see src/program/program.h. Python describes a program in tuples.
#pragma once

#include <Python.h>

namespace lz::python {

// program(values, steps) -> capsule
//   value    ("weight", tensor) | ("input",) | ("rows" | "output" | "cache", width, dtype)
//   step     (operation, inputs, {scalar: value}, outputs): operands in the operation's order
//   operand  None | value | (value, column, axes, past[, step])
// run_program(capsule, inputs, outputs, caches, past): tuples of tensors; None: absent
// program_row_bytes(capsule) -> (arena, room for the outputs of one step): bytes per row of a run
// program_kernels(capsule, inputs, outputs, caches, past) -> [kernel id of each step]
// explain_program(capsule, inputs, outputs, caches, past, step) -> JSON
// programs_may_run() -> False inside transforms, modes, autocast and traces
extern PyMethodDef kProgramMethods[];

}  // namespace lz::python
