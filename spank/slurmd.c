/* slurmd: nothing but a line in its log for what is wrong in plugstack.conf. */
#include "common.h"
#include "contexts.h"

void slurmd_init(int count, char *arguments[])
{
	struct site site;

	read_site(&site, count, arguments);
}
