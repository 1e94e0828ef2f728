# Cross-compiles for 64-bit Arm with Debian's g++-aarch64-linux-gnu (scripts/cross_aarch64.sh).
# BALLAST_SYSROOT: a folder with the arm64 libraries that Ballast links (SQLite, fmt, hwloc, udev,
# GoogleTest), unpacked from Debian's packages. C and C++ libraries come with the compiler;
# libraries of headers alone come from the host.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES ${BALLAST_SYSROOT}/usr/include/aarch64-linux-gnu)
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES BALLAST_SYSROOT)

set(CMAKE_FIND_ROOT_PATH ${BALLAST_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE BOTH)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE BOTH)
set(ENV{PKG_CONFIG_LIBDIR} ${BALLAST_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${BALLAST_SYSROOT})
# libhwloc.so names libudev.so.1, which nothing of ours does.
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,-rpath-link,${BALLAST_SYSROOT}/usr/lib/aarch64-linux-gnu)
