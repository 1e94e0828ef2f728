// Functions of libraries that are loaded at run time, where they are.
#pragma once

#include <cstdlib>
#include <dlfcn.h>
#include <string>

namespace ballast {

// What the environment's variable names (a path, or a name for the loader), else the usual one.
inline std::string library_name(const char* variable, const char* usual) {
  const char* const named = std::getenv(variable);
  return named == nullptr ? usual : named;
}

// False where the library, as dlopen gave it, does not have the function.
template <class Function>
bool find_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

// The same of several: name, function, name, function, ...
inline bool find_functions(void*) { return true; }
template <class Function, class... Others>
bool find_functions(void* library, const char* name, Function& function, Others&&... others) {
  return find_function(library, name, function) && find_functions(library, others...);
}

}  // namespace ballast
