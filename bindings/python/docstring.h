// The text of help(layerzero.rms_norm), which inspect.signature reads too; it is made from the contract.
#pragma once

#include <string>

#include "core/contract.h"

namespace lz::python {

// In CPython's form for builtins: "name(signature)", a line "--", the text.
std::string Docstring(const Contract& contract, bool layouts, bool seeded);

}  // namespace lz::python
