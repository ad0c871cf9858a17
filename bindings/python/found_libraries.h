// C libraries that come with other Python packages.
#pragma once

namespace lz::python {

// Notes the file of cuBLASLt (base/found_library.h): that of the packages nvidia-cublas and nvidia-cublas-cu12, on
// which torch's wheels depend, then torch's own folder, that of the environment (conda), CUDA_HOME, CUDA_PATH,
// LD_LIBRARY_PATH, the system's. Opens and imports nothing.
void NoteFoundLibraries();

}  // namespace lz::python
