/* The grammar of --nccl-hang-detect and of its environment twin. Pure text: no SPANK, no I/O, no allocation. */
#ifndef NCCLMON_OPTIONS_H
#define NCCLMON_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#define OPTION_NAME "nccl-hang-detect"
#define OPTION_ENVIRONMENT "SLURM_NCCL_HANG_DETECT"

/* The limits on values make sure that merged text always fits. */
#define OPTIONS_MAX 2048
#define PATH_VALUE_MAX 1024
#define ADDRESS_VALUE_MAX 256
#define DURATION_VALUE_MAX 32
#define MESSAGE_MAX 512

enum mode {
	MODE_UNSET,
#define MODE(name, help) MODE_##name,
#include "options.def"
};

enum key {
#define KEY(name, type, argument, fallback, help) KEY_##name,
#include "options.def"
	KEY_COUNT
};

/* What one source (site, environment or option) says. `value` points into `text`, so it is not for copying. */
struct options {
	bool given; /* the source says something, be it only "switch on" */
	enum mode mode;
	const char *value[KEY_COUNT]; /* NULL: not given */
	char text[OPTIONS_MAX];
};

enum parse_result { PARSE_OK, PARSE_HELP, PARSE_ERROR };

/* NULL, "" and "(null)", which Slurm makes of an option without value, are all "no value": given, and nothing set.
 * On PARSE_ERROR `message` says what is wrong and what would be right, and `options` is as if not given. */
enum parse_result options_parse(struct options *options, const char *text, char message[MESSAGE_MAX]);

/* Merges sources, weakest first, key by key, into text that options_parse takes; the mode always stands first.
 * A source that asks without naming a mode overrides a weaker "off". Returns whether the step is to be watched. */
bool options_merge(const struct options *const sources[], size_t count, char effective[OPTIONS_MAX]);

/* The value of a key, or its default where it was not given. */
const char *options_value(const struct options *options, enum key key);

/* The help text; `site` is the merged text of the site's defaults, or NULL. */
void options_help(char *text, size_t size, const char *site);

#endif
