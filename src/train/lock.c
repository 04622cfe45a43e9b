/* One run, one folder: RUN/lock.
 *
 * The lock is flock's: it ends with its process in every case, and no later process with the same
 * number is taken for it. The file names the owner. Two cases need more than flock. A network file
 * system may keep locks to one host. There the word of another host's process counts, until that
 * process or a person removes the file. Without any locks, a process of this host is alive if its
 * number and its start time are the written ones. Two that start together find out by the record,
 * which one of them overwrites. */
#include "train/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/process.h"

/* ---- the record ------------------------------------------------------------------------------ */

static bool read_owner(int fd, dh_process *owner)
{
    char text[DH_PROCESS_TEXT_BYTES];
    const ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return dh_process_parse(text, owner);
}

static dh_status write_owner(dh_ctx *ctx, const dh_folder_lock *lock)
{
    char text[DH_PROCESS_TEXT_BYTES + 1];
    const dh_process self = dh_process_here((long)getpid());
    dh_process_print(&self, text);
    const size_t n = strlen(text);
    text[n] = '\n';
    if (ftruncate(lock->fd, 0) == 0 && lseek(lock->fd, 0, SEEK_SET) == 0)
        return dh_fd_write_all(ctx, lock->fd, lock->path, text, n + 1);
    return dh_fail(ctx, DH_EIO, "cannot write %s: %s", lock->path, strerror(errno));
}

/* Without locks two runs that start together both find no owner: who wrote last has the folder. */
static bool is_own(int fd)
{
    dh_process owner;
    const dh_process self = dh_process_here((long)getpid());
    return read_owner(fd, &owner) && owner.pid == self.pid && owner.started == self.started &&
           dh_process_same_boot(&owner, &self) && strcmp(owner.space, self.space) == 0;
}

/* ---- whose it is ----------------------------------------------------------------------------- */

static bool locks_reach_all(int fd)
{
    static const unsigned long local[] = {EXT4_SUPER_MAGIC,     XFS_SUPER_MAGIC, BTRFS_SUPER_MAGIC,
                                          TMPFS_MAGIC,          RAMFS_MAGIC,     F2FS_SUPER_MAGIC,
                                          OVERLAYFS_SUPER_MAGIC};
    struct statfs info;
    if (fstatfs(fd, &info) != 0) return false;
    for (size_t i = 0; i < DH_COUNTOF(local); i++)
        if ((unsigned long)info.f_type == local[i]) return true;
    return false;
}

/* Whether the process that wrote the record has ended; locked: flock was granted. */
static bool is_over(const dh_process *owner, int fd, bool locked)
{
    const dh_process self = dh_process_here((long)getpid());
    if (locked && (dh_process_same_boot(owner, &self) || strcmp(owner->host, self.host) == 0))
        return true;
    if (locked && locks_reach_all(fd)) return true;
    return !locked && dh_process_ask(owner) == DH_PROCESS_GONE;
}

static dh_status refuse(dh_ctx *ctx, const dh_folder_lock *lock, bool locked)
{
    dh_process o;
    const int dir = (int)(strrchr(lock->path, '/') - lock->path);
    if (!read_owner(lock->fd, &o)) /* it has only just begun */
        return dh_fail(
            ctx, DH_EINVAL,
            "the run folder %.*s is in use by another process: wait for it, or set another "
            "`out`",
            dir, lock->path);
    return dh_fail(ctx, DH_EINVAL,
                   "the run folder %.*s is in use by process %ld on host %s: wait for it, stop it, "
                   "or set another `out`%s%s",
                   dir, lock->path, o.pid, o.host,
                   locked ? "; if that process is gone, remove " : "", locked ? lock->path : "");
}

bool dh_folder_is_held(const dh_folder_lock *lock)
{
    struct stat mine, there;
    return lock->path && fstat(lock->fd, &mine) == 0 && stat(lock->path, &there) == 0 &&
           mine.st_ino == there.st_ino && mine.st_dev == there.st_dev &&
           (!lock->by_record || is_own(lock->fd));
}

/* *again: the file was removed by the run that ended between opening and locking it. */
static dh_status take(dh_ctx *ctx, dh_folder_lock *lock, bool *again)
{
    const int64_t settle_ns = 100000000; /* without locks: another run's start beside this one */
    dh_process o;
    struct stat info;
    if (fstat(lock->fd, &info) != 0 || !S_ISREG(info.st_mode))
        return dh_fail(ctx, DH_EINVAL, "%s is not a regular file", lock->path);
    const dh_lock_answer answer = dh_fd_lock(lock->fd, false);
    const bool locked = answer == DH_LOCK_TAKEN;
    if (answer == DH_LOCK_HELD) return refuse(ctx, lock, false);
    *again = !dh_folder_is_held(lock);
    if (*again) return DH_OK;
    if (read_owner(lock->fd, &o) && !is_over(&o, lock->fd, locked)) return refuse(ctx, lock, true);
    DH_TRY(write_owner(ctx, lock));
    lock->by_record = !locked;
    if (locked) return DH_OK;
    dh_sleep_until_ns(dh_now_ns() + settle_ns);
    return dh_folder_is_held(lock) ? DH_OK : refuse(ctx, lock, true);
}

static dh_status open_and_take(dh_ctx *ctx, dh_folder_lock *lock)
{
    for (bool again = true; again;) {
        lock->fd = open(lock->path, O_RDWR | O_CREAT | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC, 0644);
        if (lock->fd < 0)
            return dh_fail(ctx, dh_status_of_errno(errno), "cannot open %s: %s", lock->path,
                           strerror(errno));
        dh_status st = take(ctx, lock, &again);
        if (st == DH_OK && !again) return DH_OK;
        close(lock->fd);
        DH_TRY(st);
    }
    return DH_OK;
}

/* ---- entry ----------------------------------------------------------------------------------- */

dh_status dh_folder_claim(dh_ctx *ctx, const char *dir, dh_folder_lock *lock)
{
    dh_str path = DH_STR_INIT;
    dh_str_printf(&path, "%s/lock", dir);
    dh_folder_lock taken = {.fd = -1, .path = path.text};
    dh_status st =
        path.failed ? dh_no_memory_while(ctx, "locking %s", dir) : open_and_take(ctx, &taken);
    if (st == DH_OK)
        *lock = taken;
    else
        dh_str_fini(&path);
    return st;
}

void dh_folder_release(dh_folder_lock *lock)
{
    if (!lock->path) return;
    if (dh_folder_is_held(lock)) unlink(lock->path); /* while it is locked: nobody else's */
    close(lock->fd);
    free(lock->path);
    *lock = (dh_folder_lock){0};
}

/* The first free name. */
static dh_status rename_aside(dh_ctx *ctx, const char *dir, dh_str *name)
{
    for (int i = 1; name->len == 0 || dh_path_exists(name->text); i++) {
        dh_str_clear(name);
        dh_str_printf(name, "%s.%d", dir, i);
        if (name->failed) return dh_no_memory_while(ctx, "renaming %s", dir);
    }
    if (rename(dir, name->text) == 0) return DH_OK;
    return dh_fail(ctx, DH_EIO, "cannot rename %s to %s: %s", dir, name->text, strerror(errno));
}

dh_status dh_folder_set_aside(dh_ctx *ctx, const char *dir)
{
    dh_folder_lock lock = {0};
    dh_str name = DH_STR_INIT;
    DH_TRY(dh_folder_claim(ctx, dir, &lock));
    dh_status st = rename_aside(ctx, dir, &name);
    if (st == DH_OK) { /* the lock's file went with the folder */
        dh_str_printf(&name, "/lock");
        if (!name.failed) unlink(name.text);
    }
    dh_folder_release(&lock);
    dh_str_fini(&name);
    return st;
}
