# find_package(convoke) defines the targets that were installed:
#
#   convoke::convoke         the shared library, or the static one if it is alone
#   convoke::convoke_static  the static library
#
# It needs CMake 3.21. The files of an installation may be moved together: all paths are found from
# this file.
get_filename_component(_convoke_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
if(CMAKE_LIBRARY_ARCHITECTURE)
    set(_convoke_multiarch "lib/${CMAKE_LIBRARY_ARCHITECTURE}")
endif()
set(_convoke_places PATHS "${_convoke_prefix}" PATH_SUFFIXES ${_convoke_multiarch} lib lib64 bin NO_DEFAULT_PATH)

find_path(_convoke_include convoke.h PATHS "${_convoke_prefix}" PATH_SUFFIXES include NO_CACHE NO_DEFAULT_PATH)
find_library(_convoke_shared NAMES "${CMAKE_SHARED_LIBRARY_PREFIX}convoke${CMAKE_SHARED_LIBRARY_SUFFIX}"
    ${_convoke_places} NO_CACHE)
find_library(_convoke_static NAMES "${CMAKE_STATIC_LIBRARY_PREFIX}convoke${CMAKE_STATIC_LIBRARY_SUFFIX}"
    ${_convoke_places} NO_CACHE)

if(_convoke_static AND NOT TARGET convoke::convoke_static)
    add_library(convoke::convoke_static STATIC IMPORTED)
    set_target_properties(convoke::convoke_static PROPERTIES
        IMPORTED_LOCATION "${_convoke_static}"
        INTERFACE_INCLUDE_DIRECTORIES "${_convoke_include}")
    if(UNIX)
        # What Rust's standard library needs.
        set_target_properties(convoke::convoke_static PROPERTIES
            INTERFACE_LINK_LIBRARIES "gcc_s;pthread;m;${CMAKE_DL_LIBS}")
    endif()
endif()

if(NOT TARGET convoke::convoke)
    if(_convoke_shared)
        add_library(convoke::convoke SHARED IMPORTED)
        set_target_properties(convoke::convoke PROPERTIES
            IMPORTED_LOCATION "${_convoke_shared}"
            INTERFACE_INCLUDE_DIRECTORIES "${_convoke_include}")
    elseif(_convoke_static)
        add_library(convoke::convoke INTERFACE IMPORTED)
        set_target_properties(convoke::convoke PROPERTIES INTERFACE_LINK_LIBRARIES convoke::convoke_static)
    endif()
endif()

if(NOT _convoke_include OR NOT TARGET convoke::convoke)
    set(convoke_FOUND FALSE)
    set(convoke_NOT_FOUND_MESSAGE "convoke.h or the library is not under ${_convoke_prefix}")
endif()
