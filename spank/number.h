#ifndef NCCLMON_NUMBER_H
#define NCCLMON_NUMBER_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/* A whole decimal number and nothing else; `number` is left alone when it is none. */
static inline bool read_u32(const char *text, uint32_t *number)
{
	unsigned long value;
	char *end;

	if (!text || *text < '0' || *text > '9')
		return false;
	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno || *end || value > UINT32_MAX)
		return false;
	*number = (uint32_t)value;
	return true;
}

#endif
