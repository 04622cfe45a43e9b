/* Calls of the library from Python. */
#ifndef DH_PYTHON_CALL_H
#define DH_PYTHON_CALL_H

#define Py_LIMITED_API 0x03090000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <signal.h>

#include <dhelix/dhelix.h>

/* An exception set aside. */
typedef struct exception {
    PyObject *type, *value, *traceback; /* type NULL: none */
} exception;

/* One call of the library, and the thread that makes it. */
typedef struct call {
    dh_status (*work)(dh_ctx *ctx, struct call *c); /* in a thread that may not touch Python */
    void *args;                                     /* of work */
    dh_str out;                                     /* its result */

    dh_ctx ctx;
    dh_status status;
    exception raised;           /* what ends the call when it is done; of the interpreter's lock */
    volatile sig_atomic_t stop; /* asked to end */
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool has_ended;
    struct call *next; /* of those under way */
} call;

/* The state of the module, which each interpreter has its own of. */
typedef struct calls {
    call *first;    /* under way */
    bool has_ended; /* no more calls: the interpreter ends */
    pid_t process;  /* whose calls these are: the child of a fork has none of its parent's */
} calls;

/* Make the call; what it appended to out, as str. NULL: an exception is set. */
PyObject *run(PyObject *module, call *c);
/* Of the module, for atexit: asks all calls to stop, waits for them and refuses others. */
PyObject *end_calls(PyObject *module, PyObject *args);
/* The exception that Python has now ends the call: the work is asked to stop, and run raises it.
 * Only the first is kept. */
void set_aside(call *c);

#endif
