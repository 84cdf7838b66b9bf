#define _GNU_SOURCE
#include "image.h"
#include "table.h"

#include <elf.h>
#include <string.h>

// The header of a fat binary, and what nvcc puts in front of one. Source: fatbinary_section.h of the CUDA toolkit 13.0, and, for entries, what its nvcc makes (read on 2026-12-01).
#define FATBIN 0xBA55ED50u
#define WRAPPER 0x466243B1u
struct fatbin { uint32_t magic; uint16_t version, header; uint64_t bytes; };         // bytes: of the entries, behind the header
struct wrapper { uint32_t magic, version; const void *data; };
struct entry { uint16_t kind, version; uint32_t header; uint64_t bytes, unused; uint16_t minor, major; uint32_t architecture; }; // bytes: padded, behind the header; architecture: 90 for sm_90
enum { CUBIN = 2 };

// Of a symbol's st_other: the variable is managed. Of relocations: none; a whole address of 64 bits; the lower or higher half of one in the second word of an instruction. Source: what cuobjdump -elf of the CUDA toolkit 13.0 shows of sm_75 to
// sm_120: code has addresses in .nv.constant4, and in instructions if it was linked (-rdc=true) or is for a debugger (-G).
#define MANAGED 4
enum { R_CUDA_NONE = 0, R_CUDA_64 = 2, R_CUDA_G64 = 4, R_CUDA_ABS32_LO_32 = 56, R_CUDA_ABS32_HI_32 = 57 };

#define ALIGNMENT ((size_t)256)

// cubin is a cubin in memory, whose parts sound has checked.
struct cubin {
	char *at;
	size_t bytes;
	const struct entry *entry; // ahead of it in a fat binary; NULL: it is alone
	const Elf64_Shdr *sections;
	unsigned count;
	Elf64_Sym *symbols;
	size_t symbols_count;
	const char *strings;
	size_t strings_bytes;
};

static int within(const struct cubin *c, uint64_t offset, uint64_t bytes) { return offset <= c->bytes && bytes <= c->bytes - offset; }

// image_cubin returns whether code begins as a cubin of 64 bits does.
int image_cubin(const void *code)
{
	const Elf64_Ehdr *header = code;

	return !memcmp(header->e_ident, ELFMAG, SELFMAG) && header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_machine == EM_CUDA && header->e_shentsize == sizeof(Elf64_Shdr);
}

// sound reads the sections of a cubin. It returns 0 if there is no cubin, or a damaged one.
static int sound(struct cubin *c)
{
	const Elf64_Ehdr *header = (const void *)c->at;

	if (c->bytes < sizeof(*header) || !image_cubin(header) || !within(c, header->e_shoff, (uint64_t)header->e_shnum * sizeof(Elf64_Shdr)))
		return 0;
	c->sections = (const void *)(c->at + header->e_shoff);
	c->count = header->e_shnum;
	for (unsigned n = 0; n < c->count; n++) {
		const Elf64_Shdr *s = &c->sections[n];

		if (s->sh_type != SHT_NOBITS && !within(c, s->sh_offset, s->sh_size))
			return 0;
		if (s->sh_type != SHT_SYMTAB || s->sh_link >= c->count)
			continue;
		c->symbols = (void *)(c->at + s->sh_offset);
		c->symbols_count = s->sh_size / sizeof(Elf64_Sym);
		c->strings = c->at + c->sections[s->sh_link].sh_offset;
		c->strings_bytes = c->sections[s->sh_link].sh_size;
	}
	return c->symbols && within(c, (uint64_t)(c->strings - c->at), c->strings_bytes) && c->strings_bytes && !c->strings[c->strings_bytes - 1];
}

static int is_managed(const struct cubin *c, const Elf64_Sym *s)
{
	return ELF64_ST_TYPE(s->st_info) == STT_OBJECT && s->st_other & MANAGED && s->st_shndx < c->count && s->st_name < c->strings_bytes;
}

// length returns how long a cubin is of which only the beginning is known.
static size_t length(const void *code)
{
	const Elf64_Ehdr *header = code;
	const Elf64_Shdr *sections = (const void *)((const char *)code + header->e_shoff);
	size_t end = header->e_shoff + (size_t)header->e_shnum * sizeof(Elf64_Shdr), programs = header->e_phoff + (size_t)header->e_phnum * sizeof(Elf64_Phdr);

	if (programs > end)
		end = programs;
	for (unsigned n = 0; n < header->e_shnum; n++)
		if (sections[n].sh_type != SHT_NOBITS && sections[n].sh_offset + sections[n].sh_size > end)
			end = sections[n].sh_offset + sections[n].sh_size;
	return end;
}

// fat_of returns the fat binary that code is, or that a wrapper refers to; NULL: neither.
static const struct fatbin *fat_of(const void *code)
{
	const struct wrapper *wrapper = code;
	const struct fatbin *fat = wrapper->magic == WRAPPER ? wrapper->data : code;

	return fat->magic == FATBIN ? fat : NULL;
}

int image_fat(const void *code, const void **at, size_t *bytes)
{
	const struct fatbin *fat = fat_of(code);

	*at = fat;
	*bytes = fat ? fat->header + fat->bytes : 0;
	return fat != NULL;
}

// each calls f with each cubin of some code until one returns 0, and returns whether none has.
static int each(const void *code, int (*f)(struct cubin *c, void *with), void *with)
{
	const struct fatbin *fat = fat_of(code);
	struct cubin whole = {.at = (char *)code};

	if (image_cubin(code)) {
		whole.bytes = length(code);
		return !sound(&whole) || f(&whole, with);
	}
	if (!fat)
		return 1;
	for (const char *at = (const char *)fat + fat->header, *end = at + fat->bytes; end - at >= (ptrdiff_t)sizeof(struct entry);) {
		const struct entry *e = (const void *)at;
		struct cubin c = {.at = (char *)at + e->header, .bytes = e->bytes, .entry = e};

		if (e->header < sizeof(*e) || e->header > (size_t)(end - at) || e->bytes > (size_t)(end - at) - e->header)
			return 1;
		if (e->kind == CUBIN && sound(&c) && !f(&c, with))
			return 0;
		at = c.at + c.bytes;
	}
	return 1;
}

static struct variable *named(const struct image *i, const char *name)
{
	for (size_t n = 0; n < i->count; n++)
		if (!strcmp(i->variables[n].name, name))
			return &i->variables[n];
	return NULL;
}

static int add(struct image *i, const char *name, size_t bytes)
{
	if (i->count == i->most) {
		size_t most = i->most ? 2 * i->most : 64;
		struct variable *all = room(most * sizeof(*all));

		if (!all)
			return 0;
		if (i->count)
			memcpy(all, i->variables, i->count * sizeof(*all));
		if (i->most)
			room_free(i->variables, i->most * sizeof(*all));
		i->variables = all;
		i->most = most;
	}
	i->variables[i->count++] = (struct variable){.name = name, .bytes = bytes};
	return 1;
}

// list adds the managed variables of a cubin to an image. It returns 0 if a variable has another size in another cubin, or if there is no room.
static int list(struct cubin *c, void *with)
{
	struct image *i = with;

	for (size_t n = 0; n < c->symbols_count; n++) {
		const Elf64_Sym *s = &c->symbols[n];
		const struct variable *v;

		if (!is_managed(c, s))
			continue;
		v = named(i, c->strings + s->st_name);
		if (v ? v->bytes != s->st_size : !add(i, c->strings + s->st_name, s->st_size))
			return 0;
	}
	return 1;
}

static int has_none(struct cubin *c, void *with)
{
	(void)with;
	for (size_t n = 0; n < c->symbols_count; n++)
		if (is_managed(c, &c->symbols[n]))
			return 0;
	return 1;
}

// suits returns 0 for a cubin that a GPU of a capability (10 times the major number, and the minor one) can run for certain. Since sm_90 some cubins are for one minor number alone (sm_100a).
static int suits(struct cubin *c, void *with)
{
	unsigned capability = *(unsigned *)with, architecture = c->entry ? c->entry->architecture : capability;

	return architecture != capability && (capability >= 90 || architecture / 10 != capability / 10 || architecture > capability);
}

int image_suits(const void *code, unsigned capability) { return !each(code, suits, &capability); }

int image_has(const void *code) { return !each(code, has_none, NULL); }

// measure counts the bytes of a cubin with what is ahead of it, and append copies these. The header of a fat binary is ahead of all.
static size_t ahead(const struct cubin *c) { return c->entry ? c->entry->header : 0; }

static int measure(struct cubin *c, void *with)
{
	*(size_t *)with += (c->entry && !*(size_t *)with ? sizeof(struct fatbin) : 0) + ahead(c) + c->bytes;
	return 1;
}

static int append(struct cubin *c, void *with)
{
	struct image *i = with;

	if (c->entry && !i->bytes) {
		*(struct fatbin *)i->code = (struct fatbin){.magic = FATBIN, .version = 1, .header = sizeof(struct fatbin)};
		i->bytes = sizeof(struct fatbin);
	}
	memcpy(i->code + i->bytes, c->at - ahead(c), ahead(c) + c->bytes);
	i->bytes += ahead(c) + c->bytes;
	if (c->entry)
		((struct fatbin *)i->code)->bytes = i->bytes - sizeof(struct fatbin);
	return 1;
}

int image_read(struct image *i, const void *code)
{
	size_t bytes = 0;

	*i = (struct image){0};
	if (!image_has(code) || !each(code, measure, &bytes))
		return 0;
	i->code = room(bytes);
	if (i->code && each(code, append, i) && each(i->code, list, i))
		return 1;
	i->bytes = bytes;
	image_free(i);
	return 0;
}

void image_free(struct image *i)
{
	if (i->code)
		room_free(i->code, i->bytes);
	if (i->variables)
		room_free(i->variables, i->most * sizeof(*i->variables));
	*i = (struct image){0};
}

static size_t rounded(size_t bytes) { return (bytes + ALIGNMENT - 1) & ~(ALIGNMENT - 1); }

size_t image_bytes(const struct image *i)
{
	size_t bytes = 0;

	for (size_t n = 0; n < i->count; n++)
		bytes += rounded(i->variables[n].bytes);
	return bytes;
}

// at_place returns the managed variable that is at a place of a section, and how far in it that is; NULL: none.
static const struct variable *at_place(const struct cubin *c, const struct image *i, unsigned section, uint64_t place, uint64_t *in)
{
	for (size_t n = 0; n < c->symbols_count; n++) {
		const Elf64_Sym *s = &c->symbols[n];

		if (is_managed(c, s) && s->st_shndx == section && place >= s->st_value && place - s->st_value < s->st_size) {
			*in = place - s->st_value;
			return named(i, c->strings + s->st_name);
		}
	}
	return NULL;
}

// put writes an address, or one half of it, as a type of relocation asks for. It returns 0 if it does not know the type.
static int put(char *place, unsigned type, uint64_t address)
{
	switch (type) {
	case R_CUDA_64:
	case R_CUDA_G64: memcpy(place, &address, sizeof(address)); return 1;
	case R_CUDA_ABS32_HI_32: address >>= 32; // fall through
	case R_CUDA_ABS32_LO_32: memcpy(place + 4, &address, 4); return 1;
	}
	return 0;
}

// relocate writes the address of a managed variable where a relocation of a section asks for it. Then it takes the relocation from the driver. A relocation names a variable, or the section that has the variable. addend is NULL if the
// addend is in place: put can do that with whole addresses only. relocate returns 0 if it cannot do this.
static int relocate(const struct cubin *c, const struct image *i, const Elf64_Shdr *section, uint64_t offset, uint64_t *info, const int64_t *addend)
{
	unsigned type = ELF64_R_TYPE(*info);
	const struct variable *v = NULL;
	uint64_t in = 0, unused;
	const Elf64_Sym *s;
	char *place;

	if (ELF64_R_SYM(*info) >= c->symbols_count || section->sh_type == SHT_NOBITS || offset > section->sh_size || section->sh_size - offset < sizeof(in))
		return 1; // the driver judges it
	s = &c->symbols[ELF64_R_SYM(*info)];
	place = c->at + section->sh_offset + offset;
	memcpy(&in, addend ? (const void *)addend : place, sizeof(in));
	if (is_managed(c, s))
		v = named(i, c->strings + s->st_name);
	else if (ELF64_ST_TYPE(s->st_info) == STT_SECTION)
		v = at_place(c, i, s->st_shndx, in, &in);
	if (!v)
		return !at_place(c, i, (unsigned)(section - c->sections), offset, &unused);
	if ((!addend && type != R_CUDA_64 && type != R_CUDA_G64) || !put(place, type, v->address + in))
		return 0;
	*info = ELF64_R_INFO(ELF64_R_SYM(*info), R_CUDA_NONE);
	return 1;
}

static int relocate_all(const struct cubin *c, const struct image *i)
{
	for (unsigned n = 0; n < c->count; n++) {
		const Elf64_Shdr *s = &c->sections[n];

		if (s->sh_info >= c->count)
			continue;
		if (s->sh_type == SHT_RELA)
			for (Elf64_Rela *r = (void *)(c->at + s->sh_offset), *end = r + s->sh_size / sizeof(*r); r < end; r++)
				if (!relocate(c, i, &c->sections[s->sh_info], r->r_offset, &r->r_info, &r->r_addend))
					return 0;
		if (s->sh_type == SHT_REL)
			for (Elf64_Rel *r = (void *)(c->at + s->sh_offset), *end = r + s->sh_size / sizeof(*r); r < end; r++)
				if (!relocate(c, i, &c->sections[s->sh_info], r->r_offset, &r->r_info, NULL))
					return 0;
	}
	return 1;
}

// place makes the managed variables of a cubin variables of the device. They have no name, and nothing refers to them. It returns 0 if it cannot.
static int place(struct cubin *c, void *with)
{
	struct image *i = with;

	if (!relocate_all(c, i))
		return 0;
	for (size_t n = 0; n < c->symbols_count; n++) {
		Elf64_Sym *s = &c->symbols[n];
		const Elf64_Shdr *section;

		if (!is_managed(c, s))
			continue;
		section = &c->sections[s->st_shndx];
		if (section->sh_type != SHT_NOBITS && s->st_value <= section->sh_size && s->st_size <= section->sh_size - s->st_value)
			named(i, c->strings + s->st_name)->initial = c->at + section->sh_offset + s->st_value;
		s->st_other &= (unsigned char)~MANAGED;
		s->st_name = 0;
	}
	return 1;
}

int image_place(struct image *i, CUdeviceptr address)
{
	for (size_t n = 0; n < i->count; n++) {
		i->variables[n].address = address;
		address += rounded(i->variables[n].bytes);
	}
	return each(i->code, place, i);
}
