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
# Windows loads a library by its own name, and links it by an import library.
find_library(_convoke_import NAMES "${CMAKE_IMPORT_LIBRARY_PREFIX}convoke${CMAKE_IMPORT_LIBRARY_SUFFIX}"
    ${_convoke_places} NO_CACHE)
if(WIN32)
    find_file(_convoke_shared convoke.dll ${_convoke_places} NO_CACHE)
endif()
find_library(_convoke_static NAMES "${CMAKE_STATIC_LIBRARY_PREFIX}convoke${CMAKE_STATIC_LIBRARY_SUFFIX}"
    ${_convoke_places} NO_CACHE)

# Whether pointers of the library have as many bytes as those of the project: the fifth byte of an
# ELF file is 1 for 32 bits and 2 for 64.
if(CMAKE_SIZEOF_VOID_P AND _convoke_shared)
    file(READ "${_convoke_shared}" _convoke_begin LIMIT 5 HEX)
    math(EXPR _convoke_class "${CMAKE_SIZEOF_VOID_P} / 4")
    if(_convoke_begin MATCHES "^7f454c46" AND NOT _convoke_begin STREQUAL "7f454c460${_convoke_class}")
        set(convoke_FOUND FALSE)
        set(convoke_NOT_FOUND_MESSAGE
            "${_convoke_shared} is for pointers of another size than ${CMAKE_SIZEOF_VOID_P} bytes")
        return()
    endif()
endif()

if(_convoke_static AND NOT TARGET convoke::convoke_static)
    add_library(convoke::convoke_static STATIC IMPORTED)
    set_target_properties(convoke::convoke_static PROPERTIES
        IMPORTED_LOCATION "${_convoke_static}"
        INTERFACE_INCLUDE_DIRECTORIES "${_convoke_include}")
    # What Rust's standard library needs. macOS has all of it in its system library.
    if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
        set_target_properties(convoke::convoke_static PROPERTIES
            INTERFACE_LINK_LIBRARIES "gcc_s;pthread;m;${CMAKE_DL_LIBS}")
    elseif(WIN32)
        set_target_properties(convoke::convoke_static PROPERTIES
            INTERFACE_LINK_LIBRARIES "kernel32;ntdll;userenv;ws2_32;dbghelp")
    elseif(UNIX AND NOT APPLE)
        set_target_properties(convoke::convoke_static PROPERTIES
            INTERFACE_LINK_LIBRARIES "pthread;m;${CMAKE_DL_LIBS}")
    endif()
endif()

if(NOT TARGET convoke::convoke)
    if(_convoke_shared)
        add_library(convoke::convoke SHARED IMPORTED)
        set_target_properties(convoke::convoke PROPERTIES
            IMPORTED_LOCATION "${_convoke_shared}"
            INTERFACE_INCLUDE_DIRECTORIES "${_convoke_include}")
        if(WIN32)
            set_target_properties(convoke::convoke PROPERTIES IMPORTED_IMPLIB "${_convoke_import}")
        endif()
    elseif(_convoke_static)
        add_library(convoke::convoke INTERFACE IMPORTED)
        set_target_properties(convoke::convoke PROPERTIES INTERFACE_LINK_LIBRARIES convoke::convoke_static)
    endif()
endif()

if(NOT _convoke_include OR NOT TARGET convoke::convoke)
    set(convoke_FOUND FALSE)
    set(convoke_NOT_FOUND_MESSAGE "convoke.h or the library is not under ${_convoke_prefix}")
endif()
