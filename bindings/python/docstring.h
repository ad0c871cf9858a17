// What help(layerzero.rms_norm) shows and inspect.signature reads: both come from the contract.
#pragma once

#include <string>

#include "core/contract.h"

namespace lz::door {

// In CPython's form for builtins: "name(signature)", a line "--", the text.
std::string Docstring(const Contract& contract, bool layouts, bool seeded);

}  // namespace lz::door
