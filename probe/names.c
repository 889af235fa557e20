/* NCCL names functions, algorithms, protocols and types by strings; frames hold codes. */
#include "probe.h"

#define NAME(code, name) name,
#define COUNT(table) (sizeof(table) / sizeof((table)[0]))
#define HINTS 64

static const char *const functions[] = { NCCLMON_FUNCTIONS(NAME) };
static const char *const algorithms[] = { NCCLMON_ALGORITHMS(NAME) };
static const char *const protocols[] = { NCCLMON_PROTOCOLS(NAME) };
static const char *const datatypes[] = { NCCLMON_DATATYPES(NAME) };

/* NCCL's strings are literals, so an address nearly always means the same name again: the code found last time for it is tried
 * first. It is compared all the same, so a hint can be wrong but never mislead. */
static uint8_t code_of(const char *name, const char *const *table, uint8_t count, uint8_t *hints)
{
	uint8_t *hint, code;

	if (unlikely(!name))
		return 0;
	hint = &hints[((uintptr_t)name ^ (uintptr_t)name >> 6) % HINTS];
	code = load(hint);
	if (likely(!strcmp(table[code], name)))
		return code;
	for (code = 1; code < count; code++) {
		if (!strcmp(table[code], name)) {
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
		[DATATYPE_INT8] = 1,    [DATATYPE_UINT8] = 1,   [DATATYPE_INT32] = 4,      [DATATYPE_UINT32] = 4,    [DATATYPE_INT64] = 8,
		[DATATYPE_UINT64] = 8,  [DATATYPE_FLOAT16] = 2, [DATATYPE_FLOAT32] = 4,    [DATATYPE_FLOAT64] = 8,
		[DATATYPE_BFLOAT16] = 2, [DATATYPE_FLOAT8E4M3] = 1, [DATATYPE_FLOAT8E5M2] = 1,
	};

	return datatype < COUNT(bytes) ? bytes[datatype] : 0;
}
