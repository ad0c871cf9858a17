# Two ways out of the build folder:
#   cmake --install build/release --prefix P       the C++ package: library, headers, find_package(LayerZero), pkg-config
#   component "python", placed by `make wheel`     the libraries of the Python package, beside its modules
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS layerzero EXPORT LayerZeroTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT cpp)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/layerzero DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT cpp)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/LayerZero)
install(EXPORT LayerZeroTargets NAMESPACE LayerZero:: DESTINATION ${package_dir} COMPONENT cpp)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/LayerZeroConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/LayerZeroConfig.cmake INSTALL_DESTINATION ${package_dir})
# Before 1.0 a minor version may break.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/LayerZeroConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/LayerZeroConfig.cmake ${PROJECT_BINARY_DIR}/LayerZeroConfigVersion.cmake
        DESTINATION ${package_dir} COMPONENT cpp)
file(RELATIVE_PATH up /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)  # from the file to the prefix, wherever that is
configure_file(${CMAKE_CURRENT_LIST_DIR}/layerzero.pc.in ${PROJECT_BINARY_DIR}/layerzero.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/layerzero.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT cpp)

# The wheel carries every library that a plain system may lack and that cannot be linked in statically.
foreach(binding layerzero layerzero_python layerzero_torch layerzero_cuda)
  if(TARGET ${binding})
    install(TARGETS ${binding} LIBRARY DESTINATION layerzero COMPONENT python EXCLUDE_FROM_ALL)
  endif()
endforeach()
foreach(library ${LZ_HWY_LIBRARY} ${LZ_YAML_LIBRARY})
  file(REAL_PATH ${library} real)
  if(real MATCHES "\\.so")
    # Under the name that the loader asks for, not the file's own: libhwy.so.1 (of 1.0.3), libyaml-cpp.so.0.7 (of 0.7.0).
    execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${real} OUTPUT_VARIABLE headers COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCH "SONAME +([^\n ]+)" _ "${headers}")
    install(FILES ${real} RENAME ${CMAKE_MATCH_1} DESTINATION layerzero COMPONENT python EXCLUDE_FROM_ALL)
  endif()
endforeach()
# The torch references of the operations, read when a call falls back to one.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/ops/ DESTINATION layerzero/_reference COMPONENT python EXCLUDE_FROM_ALL
        FILES_MATCHING PATTERN "*.py")
# The calls of `layerzero bench ops`.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/bench/ops/ DESTINATION layerzero/_bench COMPONENT python EXCLUDE_FROM_ALL)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/schemas DESTINATION layerzero COMPONENT python EXCLUDE_FROM_ALL)
