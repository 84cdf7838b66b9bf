// Symbols of what is loaded, as the loader sees them. dlsym cannot be asked: it is what is interposed here, and where it is, and by which
// version, depends on the C library.
#ifndef CRYO_GPU_ELF_H
#define CRYO_GPU_ELF_H

#include <elf.h>
#include <stddef.h>
#include <stdint.h>

// object is a loaded file: the program, or a library.
struct object {
	const char *name;       // its path; of the program it is empty
	uintptr_t base;         // what addresses in it are counted from
	uintptr_t first, end;   // where it is
	const Elf64_Sym *symbols;
	const char *strings;
	const uint32_t *gnu_hash, *hash;  // NULL where it has none
	const Elf64_Rela *relocations[2]; // of functions and of others
	size_t relocations_count[2];
};

// elf_each calls f with each object in the order in which symbols are looked for, until that gives other than 0, and gives that.
int elf_each(int (*f)(const struct object *o, void *with), void *with);
// elf_symbol gives the address of a function that an object defines, or NULL.
void *elf_symbol(const struct object *o, const char *name);
// elf_driver gives the address of a function of libcuda.so.1, or NULL where that is not loaded or has none of this name.
void *elf_driver(const char *name);
// elf_is_driver is true for libcuda.so.1.
int elf_is_driver(const struct object *o);
// elf_is_own is true for this library.
int elf_is_own(const struct object *o);
// elf_next gives the first function of a name that is not in this library, or NULL.
void *elf_next(const char *name);
// elf_behind is elf_next among those that come behind this library.
void *elf_behind(const char *name);

#endif
