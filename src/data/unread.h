/* Files of tokenizers that are known by name and not read: tiktoken's and Mistral's tekken. */
#ifndef DH_DATA_UNREAD_H
#define DH_DATA_UNREAD_H

#include "base/base.h"

enum { DH_UNREAD_NAME = 256 };

/* tekken.json, tiktoken.model, NAME.tiktoken. */
bool dh_unread_tokenizer(const char *name);
/* The first such file of a folder by name; "" where there is none, or the folder cannot be read. */
void dh_unread_tokenizer_in(const char *folder, char name[DH_UNREAD_NAME]);

#endif
