// Checks that values and steps make a program. Everything that no run can change is checked here, once.
#pragma once

#include <span>

#include "program/program.h"

namespace lz {

// Elements that an operand reads or writes of one row; -1: the sizes are not those of a row.
int64_t Width(const Operand& operand);

std::string ShapeText(std::span<const int64_t> shape, DType dtype);  // [2, 3, 64] of float32

// The error for every fault of a program itself.
Status WrongProgram(std::string field, std::string wanted, std::string got);

Status CheckProgram(std::span<const ProgramValue> values, std::span<const ProgramStep> steps);

}  // namespace lz
