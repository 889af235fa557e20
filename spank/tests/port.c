#include "../port.h"

#include "check.h"

/* No two of `jobs` neighbouring jobs with `steps` steps each share a port. */
static void check_distinct(uint32_t job, uint32_t jobs, uint32_t steps)
{
	static unsigned char taken[10000];
	uint32_t j, s, port;

	memset(taken, 0, sizeof taken);
	for (j = 0; j < jobs; j++) {
		for (s = 0; s < steps; s++) {
			port = ras_port("cluster", job + j, s);
			CHECK(port >= 20000 && port < 29973);
			CHECK(!taken[port - 20000]);
			taken[port - 20000] = 1;
		}
	}
}

void test_port(void)
{
	check_distinct(1, 163, 61);
	check_distinct(UINT32_MAX - 200, 163, 61);
	check_distinct(77, 1, 9973);
	CHECK(ras_port("a", 1, 0) != ras_port("b", 1, 0));
	CHECK(ras_port("", 7, 3) == ras_port("", 7, 3));
}
