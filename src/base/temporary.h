/* Temporary files and folders (base.h) of a process that ends before it has put them in place. */
#ifndef DH_BASE_TEMPORARY_H
#define DH_BASE_TEMPORARY_H

/* Removes the temporary files of this process, which must end right after. Other threads may go on
 * writing meanwhile; a thread that is about to make another temporary file waits for the end. A
 * file that was just renamed into its place stays. Nothing is removed on a file system without
 * locks, because locks tell which files are the process's own. The next start removes them
 * there. */
void dh_temporary_drop_own(void);

#endif
