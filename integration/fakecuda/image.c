// Code that programs load as a cubin: variables.cubin. Its kernel is C here, and finds the variables where the cubin's constants have them, as the code of a GPU does. A managed variable is managed memory of the driver's.
#define _GNU_SOURCE
#include "driver.h"
#include "image.h"
#include "virtual.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

// Of a symbol that is managed, and of relocations (CUDA toolkit 13.0, cuobjdump -elf).
#define MANAGED 4
enum { R_CUDA_64 = 2, R_CUDA_G64 = 4 };

#define SYMBOLS 64

// Of fat binaries (fatbinary_section.h of the CUDA toolkit, and what nvcc 13.0 makes).
struct wrapper { uint32_t magic, version; const void *data; };
struct fat { uint32_t magic; uint16_t version, header; uint64_t bytes; };
struct entry { uint16_t kind, version; uint32_t header; uint64_t bytes; };

struct image {
	char *code;
	Elf64_Shdr *sections;
	const Elf64_Sym *symbols;
	const char *names;
	size_t count;
	CUdeviceptr at[SYMBOLS]; // where a variable is, by symbols
};

static const char *section_name(const struct image *i, const Elf64_Shdr *s)
{
	return i->code + i->sections[((Elf64_Ehdr *)i->code)->e_shstrndx].sh_offset + s->sh_name;
}

static Elf64_Shdr *section(const struct image *i, const char *name)
{
	for (int n = 0; n < ((Elf64_Ehdr *)i->code)->e_shnum; n++)
		if (!strcmp(section_name(i, &i->sections[n]), name))
			return &i->sections[n];
	return NULL;
}

static size_t length(const void *code)
{
	const Elf64_Ehdr *header = code;
	size_t sections = header->e_shoff + header->e_shnum * sizeof(Elf64_Shdr), programs = header->e_phoff + header->e_phnum * sizeof(Elf64_Phdr);

	return sections > programs ? sections : programs; // nvcc puts both last
}

static int is_variable(const Elf64_Sym *s) { return ELF64_ST_TYPE(s->st_info) == STT_OBJECT && s->st_shndx && s->st_size; }

// bytes_of returns where the host finds the memory of a variable.
static char *bytes_of(CUdeviceptr pointer)
{
	size_t n = 1;

	return virtual_place(pointer, &n);
}

static CUresult make_variables(struct image *i)
{
	CUresult r = CUDA_SUCCESS;

	for (size_t n = 0; r == CUDA_SUCCESS && n < i->count; n++) {
		const Elf64_Sym *s = &i->symbols[n];

		if (!is_variable(s))
			continue;
		r = memory_alloc(current, current->device, s->st_size, !!(s->st_other & MANAGED), &i->at[n]);
		if (r == CUDA_SUCCESS && i->sections[s->st_shndx].sh_type == SHT_PROGBITS)
			memcpy(bytes_of(i->at[n]), i->code + i->sections[s->st_shndx].sh_offset + s->st_value, s->st_size);
	}
	return r;
}

// put writes an address at a place of a section, also where that is a variable's.
static void put(struct image *i, unsigned section, uint64_t offset, uint64_t address)
{
	if (i->sections[section].sh_type != SHT_NOBITS)
		memcpy(i->code + i->sections[section].sh_offset + offset, &address, sizeof(address));
	for (size_t n = 0; n < i->count; n++)
		if (i->at[n] && i->symbols[n].st_shndx == section && offset >= i->symbols[n].st_value && offset - i->symbols[n].st_value < i->symbols[n].st_size)
			memcpy(bytes_of(i->at[n]) + (offset - i->symbols[n].st_value), &address, sizeof(address));
}

static void relocate(struct image *i)
{
	for (int n = 0; n < ((Elf64_Ehdr *)i->code)->e_shnum; n++) {
		const Elf64_Rela *r = (void *)(i->code + i->sections[n].sh_offset);

		for (size_t k = 0; i->sections[n].sh_type == SHT_RELA && k < i->sections[n].sh_size / sizeof(*r); k++)
			if ((ELF64_R_TYPE(r[k].r_info) == R_CUDA_64 || ELF64_R_TYPE(r[k].r_info) == R_CUDA_G64) && i->at[ELF64_R_SYM(r[k].r_info)])
				put(i, i->sections[n].sh_info, r[k].r_offset, i->at[ELF64_R_SYM(r[k].r_info)] + r[k].r_addend);
	}
}

// fits returns whether code is a cubin for sm_90. The architecture is the second byte of the flags.
static int fits(const void *code)
{
	const Elf64_Ehdr *header = code;

	return !memcmp(code, ELFMAG, SELFMAG) && (header->e_flags >> 8 & 0xff) == 90;
}

// behind returns the cubin behind a text with managed variables, which is what the text is compiled to.
static const void *behind(const char *text)
{
	const char *end = text + (strlen(text) + 8) / 8 * 8;

	return strstr(text, ".attribute(.managed)") && fits(end) ? end : NULL;
}

enum { PTX = 1, CUBIN = 2 };

// in_fat returns the first cubin of a fat binary that fits, or, of PTX, what it is compiled to; NULL: there is none.
static const void *in_fat(const struct fat *fat, int kind)
{
	const char *at = (const char *)fat + fat->header, *end = at + fat->bytes;
	const void *found = NULL;

	for (const struct entry *e; at < end && !found; at += e->header + e->bytes) {
		e = (const void *)at;
		if (e->kind == kind)
			found = kind == PTX ? behind(at + e->header) : fits(at + e->header) ? at + e->header : NULL;
	}
	return found;
}

static const struct fat *fat_of(const void *code)
{
	const struct wrapper *wrapper = code;
	const struct fat *fat = wrapper->magic == 0x466243b1 ? wrapper->data : code;

	return fat->magic == 0xba55ed50 ? fat : NULL;
}

const void *image_compiled(const void *code)
{
	const struct fat *fat = fat_of(code);

	if (!fat)
		return memcmp(code, ELFMAG, SELFMAG) ? behind(code) : NULL;
	return in_fat(fat, CUBIN) ? NULL : in_fat(fat, PTX);
}

// cubin returns the one that the driver loads of some code; NULL: there is none.
static const void *cubin(const void *code)
{
	const struct fat *fat = fat_of(code);
	const void *found = fat ? in_fat(fat, CUBIN) : fits(code) ? code : NULL;

	return found ? found : image_compiled(code);
}

int image_is(const void *code) { return cubin(code) != NULL; }

int image_fat(const void *code) { return fat_of(code) != NULL; }

CUresult image_load(const void *code, struct image **loaded)
{
	struct image *i = calloc(1, sizeof(*i));
	const Elf64_Shdr *symbols;
	CUresult r;

	code = cubin(code);
	i->code = malloc(length(code));
	memcpy(i->code, code, length(code));
	i->sections = (void *)(i->code + ((Elf64_Ehdr *)i->code)->e_shoff);
	symbols = section(i, ".symtab");
	if (!symbols || symbols->sh_size / sizeof(Elf64_Sym) > SYMBOLS || !section(i, ".nv.constant4"))
		abort(); // it is none of those that are known here
	i->symbols = (void *)(i->code + symbols->sh_offset);
	i->count = symbols->sh_size / sizeof(Elf64_Sym);
	i->names = i->code + i->sections[symbols->sh_link].sh_offset;
	r = make_variables(i);
	if (r == CUDA_SUCCESS) {
		relocate(i);
		*loaded = i;
	} else {
		image_unload(i);
	}
	return r;
}

void image_unload(struct image *i)
{
	for (size_t n = 0; n < i->count; n++)
		if (i->at[n])
			memory_free(i->at[n]);
	free(i->code);
	free(i);
}

CUresult image_variable(const struct image *i, const char *name, CUdeviceptr *pointer, size_t *bytes)
{
	for (size_t n = 0; n < i->count; n++)
		if (i->at[n] && !strcmp(i->names + i->symbols[n].st_name, name)) {
			*pointer = i->at[n];
			*bytes = i->symbols[n].st_size;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_NOT_FOUND;
}

static uint64_t *word(uint64_t pointer) { return (uint64_t *)bytes_of(pointer); }

// add_places adds to each of so many words its number.
static void add_places(CUdeviceptr pointer, size_t count)
{
	for (size_t done = 0, n; done < 8 * count; done += n) {
		uint64_t *words;

		n = 8 * count - done;
		words = (uint64_t *)virtual_place(pointer + done, &n);
		for (size_t k = 0; k < n / 8; k++)
			words[k] += done / 8 + k;
	}
}

CUresult image_run(const struct image *i)
{
	const struct { uint64_t turns, sums, marks, where, step, reference; } *c = (void *)(i->code + section(i, ".nv.constant4")->sh_offset); // in the order of variables.cubin
	uint64_t all[] = {c->where, c->marks, c->sums, c->turns, c->reference};

	for (size_t n = 0; n < sizeof(all) / sizeof(*all); n++)
		if (!memory_holds(all[n], 8) && !virtual_reaches(all[n], 8, current->device))
			return CUDA_ERROR_ILLEGAL_ADDRESS;
	*word(c->turns) += *word(*word(c->reference));
	*word(c->where) = c->turns;
	add_places(c->sums, 1000);
	add_places(c->marks, (3 << 20) / 8);
	return CUDA_SUCCESS;
}
