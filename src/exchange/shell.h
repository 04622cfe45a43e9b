/* Inside src/exchange: a shell script while it is read. shell_words.c expands words, shell_commands.c
 * carries out commands and conditions, shell.c makes flags of the command that has most of them.
 *
 * A word is expanded while it is read. Commands are kept as their words; the one with most flags of
 * Megatron-LM is what the script is about. A variable without a value stays as its name ("$DATA"), so
 * that a flag does not lose its value; in conditions it is empty, as in a shell. */
#ifndef DH_EXCHANGE_SHELL_H
#define DH_EXCHANGE_SHELL_H

#include "exchange/source.h"

enum { SH_MOST_VARIABLES = 4096 };

typedef DH_VEC(const char *) sh_words;

typedef struct sh_variable {
    const char *name;
    sh_words values; /* one, or those of an array */
} sh_variable;

typedef struct shell {
    dh_ctx *ctx;
    const char *origin;
    dh_arena *arena;
    dh_source *source;
    const char *text;
    size_t at;
    int first_line; /* line of the file where the text begins */
    int depth;
    bool in_test, failed;
    size_t *expanded; /* shared with the shells of parts */
    DH_VEC(sh_variable) variables;
    sh_words best; /* command with most flags */
    size_t most;
    const char *best_place;
} shell;

/* The line of the file that the shell is at. */
int sh_line_of(const shell *s);
/* returns   DH_EFORMAT with that line */
dh_status sh_refuse(shell *s, const char *what);
dh_status sh_no_memory(shell *s);
/* A copy of n bytes as the list's last word.
 * errors    DH_EFORMAT too many expanded words; DH_ENOMEM */
dh_status sh_push(shell *s, sh_words *list, const char *text, size_t n);
/* A sentence for the reader, with the line. Sets `failed` where memory is out. */
void sh_note(shell *s, const char *what);

/* Bytes of the name of a variable that a text begins with; 0: none. */
size_t sh_name_length(const char *text);
/* NULL: out of memory, or there are SH_MOST_VARIABLES */
sh_variable *sh_find_or_add(shell *s, const char *name, size_t n);
bool sh_ends_word(char c);
/* The word at this place, expanded: none, one or several fields. */
dh_status sh_read_word(shell *s, sh_words *fields);

/* Commands up to the end of the text, or to one of elif, else and fi.
 * in        live: false reads them without carrying them out; until: "fi" or ""
 * out       stop: 'i' elif, 'e' else, 'f' fi, 0 the end */
dh_status sh_run_all(shell *s, bool live, const char *until, char *stop);

#endif
