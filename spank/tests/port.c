#include "../port.h"

#include "check.h"

/* No two of `jobs` successive jobs with `steps` steps of `tasks` tasks each share a port. */
static void check_distinct(uint32_t job, uint32_t jobs, uint32_t steps, uint32_t tasks)
{
	static unsigned char taken[9973];
	uint32_t j, s, t, port, clashes = 0;

	memset(taken, 0, sizeof taken);
	for (j = 0; j < jobs; j++) {
		for (s = 0; s < steps; s++) {
			for (t = 0; t < tasks; t++) {
				port = ras_port("cluster", job + j, s, t) - 20000;
				clashes += port >= sizeof taken || taken[port]++;
			}
		}
	}
	CHECK(!clashes);
}

void test_port(void)
{
	static const uint32_t jobs[] = { 1, 77, 1234567, UINT32_MAX - 600 };
	size_t i;

	for (i = 0; i < sizeof jobs / sizeof jobs[0]; i++) {
		check_distinct(jobs[i], 1, 1, 9973); /* tasks of a step */
		check_distinct(jobs[i], 1, 618, 16); /* steps side by side */
		check_distinct(jobs[i], 10, 61, 16); /* neighbouring jobs */
		check_distinct(jobs[i], 163, 61, 1); /* jobs of one task a node */
		check_distinct(jobs[i], 502, 1, 16); /* jobs of one step */
	}
	CHECK(ras_port("a", 1, 0, 0) != ras_port("b", 1, 0, 0));
	CHECK(ras_port("", 7, 3, 1) == ras_port("", 7, 3, 1));
}
