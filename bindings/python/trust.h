// Files that decide which code runs, for Python: who can change them, who signed them.
#pragma once

#include <Python.h>

namespace lz::python {

// read_trusted(path, what) -> bytes; check_signed(path, bytes, role); verify_signed(path, bytes) -> key;
// check_trusted(path); sign(bytes, pem, what) -> text; new_key() -> (pem, public key).
extern PyMethodDef kTrustMethods[];

}  // namespace lz::python
