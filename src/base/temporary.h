/* Temporary files and folders (base.h) of a process that ends before it has put them in place. */
#ifndef DH_BASE_TEMPORARY_H
#define DH_BASE_TEMPORARY_H

/* Removes what this process has under way. Other threads may go on writing meanwhile: the process is to
 * end right after. A thread that is to make another waits for that. What was just renamed into its place stays. Nothing is removed on a file system
 * without locks, which say what is the process's own: the next start does that. */
void dh_temporary_drop_own(void);

#endif
