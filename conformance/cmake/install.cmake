# cmake --install: headers, tools, vectors, specification, the packages for CMake and pkg-config.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(SLM_DATA ${CMAKE_INSTALL_DATADIR}/slm)
set(SLM_PACKAGE ${CMAKE_INSTALL_LIBDIR}/cmake/slm)

# What the tools must know of the layout; everything is relative, a prefix may move.
file(RELATIVE_PATH DATA_FROM_BIN ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_DATADIR}/slm)
file(RELATIVE_PATH PREFIX_FROM_BIN ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH PREFIX_FROM_PC ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH LIBRARIES_FROM_BIN ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/slm)
set_source_files_properties(conformance/registry.c PROPERTIES COMPILE_DEFINITIONS
  "SLM_LIBRARIES_FROM_BIN=\"${LIBRARIES_FROM_BIN}\"")
string(REGEX REPLACE "/$" "" PREFIX_FROM_PC "${PREFIX_FROM_PC}")
set_source_files_properties(conformance/paths.c PROPERTIES COMPILE_DEFINITIONS
  "SLM_SOURCE_DIR=\"${CMAKE_SOURCE_DIR}\";SLM_DATA_FROM_BIN=\"${DATA_FROM_BIN}\";SLM_PREFIX_FROM_BIN=\"${PREFIX_FROM_BIN}\"")
foreach(program slmoe slmoe-inprocess)
  add_dependencies(${program} new_files)
endforeach()

set_target_properties(slm_spec PROPERTIES EXPORT_NAME slm)
install(TARGETS slm_spec slmoe slmoe-host slmoe-inprocess EXPORT slm
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY spec/include/slm DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(DIRECTORY vectors DESTINATION ${SLM_DATA})
install(FILES spec/spec.md spec/protocol.md spec/vectors.md spec/bugs.md spec/recipes.md spec/tutorial-c.md
        spec/bench.md DESTINATION ${SLM_DATA})
install(FILES conformance/slmoe.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# find_package(slm CONFIG) in the prefix, and in the build folder.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/cmake/slmConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_file(conformance/cmake/slmConfig.cmake ${CMAKE_BINARY_DIR}/cmake/slmConfig.cmake COPYONLY)
install(EXPORT slm NAMESPACE slm:: FILE slmTargets.cmake DESTINATION ${SLM_PACKAGE})
install(FILES ${CMAKE_BINARY_DIR}/cmake/slmConfig.cmake ${CMAKE_BINARY_DIR}/cmake/slmConfigVersion.cmake
        DESTINATION ${SLM_PACKAGE})
export(EXPORT slm NAMESPACE slm:: FILE ${CMAKE_BINARY_DIR}/cmake/slmTargets.cmake)
configure_file(conformance/cmake/slm.pc.in ${CMAKE_BINARY_DIR}/slm.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/slm.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
