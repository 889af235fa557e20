#include "check.h"

int failures;

int main(void)
{
	test_options();
	test_merge();
	test_random_options();
	test_site();
	test_port();
	test_folder();
	test_command();
	test_environment();
	test_stepd();
	test_sweep();
	test_launch();
	if (failures)
		fprintf(stderr, "%d failed\n", failures);
	return failures != 0;
}
