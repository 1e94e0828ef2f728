// operator new of the program: where there is no memory it ends in one line
// (end_where_memory_ends).
//
// mimalloc, which brings its own, asks for no handler where it is built as C: it defines
// std::get_new_handler itself, weakly and to nothing, and aborts (mimalloc, src/alloc.c,
// mi_try_new_handler). Sanitizers bring theirs.
#include <cstdlib>
#include <new>

#include "cli/flags/memory_limit.h"

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)

void* operator new(std::size_t size) {
  if (void* const memory = std::malloc(size > 0 ? size : 1)) return memory;
  ballast::end_without_memory();
}

void* operator new[](std::size_t size) { return ::operator new(size); }

void* operator new(std::size_t size, std::align_val_t alignment) {
  void* memory = nullptr;
  const int failure =
      ::posix_memalign(&memory, static_cast<std::size_t>(alignment), size > 0 ? size : 1);
  if (failure == 0) return memory;
  ballast::end_without_memory();
}

void* operator new[](std::size_t size, std::align_val_t alignment) {
  return ::operator new(size, alignment);
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

#endif
