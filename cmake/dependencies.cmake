# Installed packages only: nothing is downloaded at configure time.
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)

find_path(LZ_HWY_INCLUDE hwy/highway.h REQUIRED)
find_library(LZ_HWY_LIBRARY hwy REQUIRED)
add_library(lz_hwy INTERFACE)
target_include_directories(lz_hwy SYSTEM INTERFACE ${LZ_HWY_INCLUDE})
target_link_libraries(lz_hwy INTERFACE ${LZ_HWY_LIBRARY})
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  # Kernels keep vectors in arrays, which types of unknown size do not allow: on 64-bit Arm NEON serves.
  target_compile_definitions(lz_hwy INTERFACE
    "HWY_DISABLED_TARGETS=(HWY_SVE|HWY_SVE2|HWY_SVE_256|HWY_SVE2_128|HWY_RVV)")
endif()

# Shared: Debian's archive of yaml-cpp is not position independent. The wheel carries the library (lz_install.cmake).
find_path(LZ_YAML_INCLUDE yaml-cpp/yaml.h REQUIRED)
find_library(LZ_YAML_LIBRARY yaml-cpp REQUIRED)
add_library(lz_yaml INTERFACE)
target_include_directories(lz_yaml SYSTEM INTERFACE ${LZ_YAML_INCLUDE})
target_link_libraries(lz_yaml INTERFACE ${LZ_YAML_LIBRARY})

# Static where the distribution has the archive: then the wheel carries one library less.
find_path(LZ_SODIUM_INCLUDE sodium.h REQUIRED)
find_library(LZ_SODIUM_LIBRARY NAMES libsodium.a sodium REQUIRED)
add_library(lz_sodium INTERFACE)
target_include_directories(lz_sodium SYSTEM INTERFACE ${LZ_SODIUM_INCLUDE})
target_link_libraries(lz_sodium INTERFACE ${LZ_SODIUM_LIBRARY})
