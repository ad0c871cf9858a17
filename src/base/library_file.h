// Identifies the file of an open shared library, for measured records: C libraries have no common way to report
// a version.
#pragma once

#include <string>

namespace lz {

// "libopenblasp-r0.3.26.so of 36723200 bytes": the file, with links resolved, of a library that is open under this path
// or soname, or that is not open and has this full path; empty if there is none.
std::string LibraryFile(const char* path);

}  // namespace lz
