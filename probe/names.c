/* NCCL names functions, algorithms, protocols and types by strings; frames hold codes. */
#include "probe.h"

#define HINTS 64
#define TEXT 16 /* every name with its end fits */
#define PAGE 4096

typedef uint64_t __attribute__((aligned(1), may_alias)) anywhere;

struct name {
	char text[TEXT];
	uint8_t length; /* with the end */
};

#define NAME(code, name) { name, sizeof(name) },
#define COUNT(table) ((uint8_t)(sizeof(table) / sizeof((table)[0])))

static const struct name functions[] = { NCCLMON_FUNCTIONS(NAME) };
static const struct name algorithms[] = { NCCLMON_ALGORITHMS(NAME) };
static const struct name protocols[] = { NCCLMON_PROTOCOLS(NAME) };
static const struct name datatypes[] = { NCCLMON_DATATYPES(NAME) };

/* The lowest `bytes` bytes of a word, 0 to 8 and beyond. */
static inline uint64_t mask(int bytes)
{
	return bytes <= 0 ? 0 : bytes >= 8 ? UINT64_MAX : (1ull << bytes * 8) - 1;
}

/* Two loads instead of a call of strcmp. They may pass the string's end, but not its page. */
__attribute__((no_sanitize("address"))) static inline bool same(const char *text, const struct name *name)
{
	uint64_t a, b, c, d;

	if (unlikely(((uintptr_t)text & (PAGE - 1)) > PAGE - TEXT))
		return !strcmp(text, name->text);
	a = *(const anywhere *)text;
	b = *(const anywhere *)(text + 8);
	memcpy(&c, name->text, 8);
	memcpy(&d, name->text + 8, 8);
	return !(((a ^ c) & mask(name->length)) | ((b ^ d) & mask(name->length - 8)));
}

/* NCCL's strings are literals, so an address nearly always means the same name again: the code found last time for it is tried
 * first. It is compared all the same, so a hint can be wrong but never mislead. */
static inline uint8_t code_of(const char *text, const struct name *table, uint8_t count, uint8_t *hints)
{
	uint8_t *hint, code;

	if (unlikely(!text))
		return 0;
	hint = &hints[((uintptr_t)text ^ (uintptr_t)text >> 6) % HINTS];
	code = load(hint);
	if (likely(same(text, &table[code])))
		return code;
	for (code = 1; code < count; code++) {
		if (same(text, &table[code])) {
			store(hint, code);
			return code;
		}
	}
	return 0;
}

uint8_t name_function(const char *name)
{
	static uint8_t hints[HINTS];

	return code_of(name, functions, COUNT(functions), hints);
}

uint8_t name_algorithm(const char *name)
{
	static uint8_t hints[HINTS];

	return code_of(name, algorithms, COUNT(algorithms), hints);
}

uint8_t name_protocol(const char *name)
{
	static uint8_t hints[HINTS];

	return code_of(name, protocols, COUNT(protocols), hints);
}

uint8_t name_datatype(const char *name)
{
	static uint8_t hints[HINTS];

	return code_of(name, datatypes, COUNT(datatypes), hints);
}

uint32_t datatype_bytes(uint8_t datatype)
{
	static const uint8_t bytes[] = {
		[DATATYPE_INT8] = 1,     [DATATYPE_UINT8] = 1,      [DATATYPE_INT32] = 4,      [DATATYPE_UINT32] = 4,
		[DATATYPE_INT64] = 8,    [DATATYPE_UINT64] = 8,     [DATATYPE_FLOAT16] = 2,    [DATATYPE_FLOAT32] = 4,
		[DATATYPE_FLOAT64] = 8,  [DATATYPE_BFLOAT16] = 2,   [DATATYPE_FLOAT8E4M3] = 1, [DATATYPE_FLOAT8E5M2] = 1,
	};

	return datatype < COUNT(bytes) ? bytes[datatype] : 0;
}
