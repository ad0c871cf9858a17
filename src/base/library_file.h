// Which file an open shared library is, for measured records: a library in C has no version that all of them say.
#pragma once

#include <string>

namespace lz {

// "libopenblasp-r0.3.26.so of 36723200 bytes": the file behind links, of a library that is open under this path or
// soname; empty where none is.
std::string LibraryFile(const char* path);

}  // namespace lz
