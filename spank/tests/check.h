/* The smallest test harness that names what failed. */
#ifndef NCCLMON_CHECK_H
#define NCCLMON_CHECK_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

extern int failures;
extern bool stop_child; /* whatever is forked stops at once */

#define CHECK(condition)                                                                       \
	do {                                                                                   \
		if (!(condition)) {                                                            \
			failures++;                                                            \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
		}                                                                              \
	} while (0)

#define CHECK_TEXT(actual, expected)                                                            \
	do {                                                                                    \
		if (strcmp((actual), (expected))) {                                             \
			failures++;                                                             \
			fprintf(stderr, "%s:%d: \"%s\"\n  is not \"%s\"\n", __FILE__, __LINE__, (actual), (expected)); \
		}                                                                               \
	} while (0)

void test_options(void);
void test_merge(void);
void test_random_options(void);
void test_site(void);
void test_port(void);
void test_folder(void);
void test_command(void);
void test_environment(void);
void test_stepd(void);
void test_sweep(void);
void test_launch(void);

#endif
