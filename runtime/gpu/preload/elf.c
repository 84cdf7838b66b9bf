#define _GNU_SOURCE
#include "elf.h"

#include <link.h>
#include <string.h>

struct each { int (*f)(const struct object *, void *); void *with; };

// pointer is an address of the dynamic section: glibc has added the base already, except in the vDSO.
static uintptr_t pointer(const struct dl_phdr_info *info, const Elf64_Dyn *d)
{
	return d->d_un.d_ptr < info->dlpi_addr ? d->d_un.d_ptr + info->dlpi_addr : d->d_un.d_ptr;
}

static void read_dynamic(const struct dl_phdr_info *info, const Elf64_Dyn *d, struct object *o)
{
	size_t relative = 0; // they come first, and are nearly all: of no function
	size_t *count = &o->relocations_count[1];

	for (; d->d_tag != DT_NULL; d++) {
		switch (d->d_tag) {
		case DT_SYMTAB: o->symbols = (const void *)pointer(info, d); break;
		case DT_STRTAB: o->strings = (const void *)pointer(info, d); break;
		case DT_GNU_HASH: o->gnu_hash = (const void *)pointer(info, d); break;
		case DT_HASH: o->hash = (const void *)pointer(info, d); break;
		case DT_JMPREL: o->relocations[0] = (const void *)pointer(info, d); break;
		case DT_PLTRELSZ: o->relocations_count[0] = d->d_un.d_val / sizeof(Elf64_Rela); break;
		case DT_RELA: o->relocations[1] = (const void *)pointer(info, d); break;
		case DT_RELASZ: *count = d->d_un.d_val / sizeof(Elf64_Rela); break;
		case DT_RELACOUNT: relative = d->d_un.d_val; break;
		}
	}
	if (o->relocations[1] && relative <= *count) {
		o->relocations[1] += relative;
		*count -= relative;
	}
}

static int look(struct dl_phdr_info *info, size_t size, void *with)
{
	struct object o = {.name = info->dlpi_name, .base = info->dlpi_addr, .first = UINTPTR_MAX};
	struct each *e = with;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const Elf64_Phdr *p = &info->dlpi_phdr[i];
		uintptr_t at = info->dlpi_addr + p->p_vaddr;

		if (p->p_type == PT_DYNAMIC)
			read_dynamic(info, (const void *)at, &o);
		if (p->p_type != PT_LOAD)
			continue;
		if (at < o.first)
			o.first = at;
		if (at + p->p_memsz > o.end)
			o.end = at + p->p_memsz;
	}
	return o.symbols && o.strings ? e->f(&o, e->with) : 0;
}

int elf_each(int (*f)(const struct object *, void *), void *with)
{
	struct each e = {f, with};

	return dl_iterate_phdr(look, &e);
}

static void *defined(const struct object *o, uint32_t i, const char *name)
{
	const Elf64_Sym *s = &o->symbols[i];

	if (s->st_shndx == SHN_UNDEF || !s->st_value || strcmp(o->strings + s->st_name, name))
		return NULL;
	return (void *)(o->base + s->st_value);
}

static void *by_gnu_hash(const struct object *o, const char *name)
{
	uint32_t buckets = o->gnu_hash[0], start = o->gnu_hash[1], words = o->gnu_hash[2], hash = 5381, i;
	const uint32_t *bucket = o->gnu_hash + 4 + words * 2, *chain = bucket + buckets;

	for (const unsigned char *c = (const void *)name; *c; c++)
		hash = hash * 33 + *c;
	if (!buckets || (i = bucket[hash % buckets]) < start)
		return NULL;
	for (;; i++) {
		uint32_t h = chain[i - start];
		void *found = (h | 1) == (hash | 1) ? defined(o, i, name) : NULL;

		if (found || h & 1)
			return found;
	}
}

void *elf_symbol(const struct object *o, const char *name)
{
	if (o->gnu_hash)
		return by_gnu_hash(o, name);
	for (uint32_t i = 0; o->hash && i < o->hash[1]; i++) { // the number of symbols
		void *found = defined(o, i, name);

		if (found)
			return found;
	}
	return NULL;
}

int elf_is_own(const struct object *o)
{
	return (uintptr_t)elf_is_own >= o->first && (uintptr_t)elf_is_own < o->end;
}

int elf_is_driver(const struct object *o)
{
	const char *slash = strrchr(o->name, '/');

	return !strncmp(slash ? slash + 1 : o->name, "libcuda.so", 10);
}

struct wanted { const char *name; void *found; int passed; };

static int in_driver(const struct object *o, void *with)
{
	struct wanted *w = with;

	if (!elf_is_driver(o))
		return 0;
	w->found = elf_symbol(o, w->name);
	return 1;
}

void *elf_driver(const char *name)
{
	struct wanted w = {.name = name};

	elf_each(in_driver, &w);
	return w.found;
}

static int in_others(const struct object *o, void *with)
{
	struct wanted *w = with;

	if (!elf_is_own(o))
		w->found = elf_symbol(o, w->name);
	return w->found != NULL;
}

void *elf_next(const char *name)
{
	struct wanted w = {.name = name};

	elf_each(in_others, &w);
	return w.found;
}

static int in_later(const struct object *o, void *with)
{
	struct wanted *w = with;

	if (elf_is_own(o))
		w->passed = 1;
	else if (w->passed)
		w->found = elf_symbol(o, w->name);
	return w->found != NULL;
}

void *elf_behind(const char *name)
{
	struct wanted w = {.name = name};

	elf_each(in_later, &w);
	return w.found;
}
