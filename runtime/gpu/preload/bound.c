#define _GNU_SOURCE
#include "bound.h"
#include "able.h"
#include "elf.h"

#include <string.h>

static int extent(const struct object *o, void *with)
{
	if (!elf_is_driver(o))
		return 0;
	*(struct object *)with = *o;
	return 1;
}

static int is_function(const char *name)
{
	return name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z' && strcmp(name, "cuGetExportTable");
}

// past looks at what the loader has bound an object's functions to.
static int past(const struct object *o, void *with)
{
	const struct object *driver = with;

	if (elf_is_own(o) || elf_is_driver(o))
		return 0;
	for (int t = 0; t < 2; t++)
		for (size_t i = 0; i < o->relocations_count[t]; i++) {
			const Elf64_Rela *r = &o->relocations[t][i];
			uint32_t type = ELF64_R_TYPE(r->r_info);
			uintptr_t to;

			if (type != R_X86_64_JUMP_SLOT && type != R_X86_64_GLOB_DAT && type != R_X86_64_64)
				continue;
			if (!is_function(o->strings + o->symbols[ELF64_R_SYM(r->r_info)].st_name))
				continue;
			to = *(const uintptr_t *)(o->base + r->r_offset);
			if (to >= driver->first && to < driver->end)
				return 1;
		}
	return 0;
}

void bound_check(void)
{
	struct object driver;

	if (!unable_reason() && elf_each(extent, &driver) && elf_each(past, &driver))
		unable("a part of the program calls the driver directly (RTLD_DEEPBIND, or a function that is newer than the library)");
}
