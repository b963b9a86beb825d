# find_package(slm CONFIG): slm::slm is what a plug-in links, slm::slmoe judges it.
include(${CMAKE_CURRENT_LIST_DIR}/slmTargets.cmake)
