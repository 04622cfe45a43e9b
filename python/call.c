/* The library works in a thread of its own with signals blocked, as the program's computing threads
 * are: a handler's frame must not be written where generated code keeps other things in the stack
 * register. The thread of Python waits meanwhile without the interpreter's lock and looks for
 * signals; Ctrl-C asks the work to stop. */
#include "call.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- calls under way ------------------------------------------------------------------------ */

/* An interpreter that ends unloads what the library's threads still use, and ends Python's daemon
 * threads wherever they wait for its lock. So its atexit hook asks all calls to stop and waits for
 * them; later calls are refused. The interpreter's lock guards the module's state. */

static calls *calls_of(PyObject *module)
{
    calls *all = PyModule_GetState(module);
    if (all && all->process != getpid()) *all = (calls){.process = getpid()}; /* after a fork */
    return all;
}

/* False: an exception is set. */
static bool begin_call(calls *all, call *c)
{
    if (all && !all->has_ended) {
        c->next = all->first;
        all->first = c;
        return true;
    }
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "dhelix was called while the interpreter ends");
    return false;
}

static void end_call(calls *all, const call *c)
{
    call **at = &all->first;
    while (*at && *at != c) at = &(*at)->next;
    if (*at) *at = c->next;
}

PyObject *end_calls(PyObject *module, PyObject *args)
{
    const struct timespec pause = {.tv_nsec = 2000000};
    calls *all = calls_of(module);
    if (!all) return NULL;
    all->has_ended = true;
    while (all->first) {
        for (call *c = all->first; c; c = c->next) c->stop = 1;
        Py_BEGIN_ALLOW_THREADS;
        nanosleep(&pause, NULL);
        Py_END_ALLOW_THREADS;
    }
    Py_RETURN_NONE;
}

/* ---- one call ------------------------------------------------------------------------------- */

void set_aside(call *c)
{
    if (!c->raised.type) PyErr_Fetch(&c->raised.type, &c->raised.value, &c->raised.traceback);
    PyErr_Clear();
    c->stop = 1;
}

static void *work_in_thread(void *arg)
{
    call *c = arg;
    c->status = c->work(&c->ctx, c);
    pthread_mutex_lock(&c->lock);
    c->has_ended = true;
    pthread_cond_signal(&c->ended);
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Threads that the library starts inherit the mask. */
static bool start_thread(call *c, pthread_t *thread)
{
    sigset_t all, before;
    sigfillset(&all);
    if (pthread_sigmask(SIG_BLOCK, &all, &before) != 0) return false;
    const bool started = pthread_create(thread, NULL, work_in_thread, c) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* Until the work has ended, or for as long as a signal may wait. */
static bool wait_a_little(call *c)
{
    enum { WAIT_NS = 20000000, SECOND_NS = 1000000000 };
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += WAIT_NS;
    until.tv_sec += until.tv_nsec / SECOND_NS;
    until.tv_nsec %= SECOND_NS;
    pthread_mutex_lock(&c->lock);
    if (!c->has_ended) pthread_cond_timedwait(&c->ended, &c->lock, &until);
    const bool ended = c->has_ended;
    pthread_mutex_unlock(&c->lock);
    return ended;
}

static void watch(call *c)
{
    bool ended = false;
    while (!ended) {
        Py_BEGIN_ALLOW_THREADS;
        ended = wait_a_little(c);
        Py_END_ALLOW_THREADS;
        if (PyErr_CheckSignals() != 0) set_aside(c);
    }
}

/* The package's exception for the status: dhelix.errors makes it. NULL: another one is set. */
static PyObject *error_of(const call *c)
{
    PyObject *errors = PyImport_ImportModule("dhelix.errors");
    PyObject *message =
        PyUnicode_DecodeUTF8(c->ctx.message, (Py_ssize_t)strlen(c->ctx.message), "replace");
    PyObject *error = errors && message ? PyObject_CallMethod(errors, "error_of", "sO",
                                                              dh_status_name(c->status), message)
                                        : NULL;
    Py_XDECREF(message);
    Py_XDECREF(errors);
    return error;
}

static void raise_status(const call *c)
{
    PyObject *error = error_of(c);
    if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(error);
}

/* What ended the call, with what the library said of its end as context. */
static void raise_again(call *c)
{
    exception *e = &c->raised;
    PyErr_NormalizeException(&e->type, &e->value, &e->traceback);
    PyObject *error = c->status == DH_OK ? NULL : error_of(c);
    if (error) PyException_SetContext(e->value, error);
    PyErr_Restore(e->type, e->value, e->traceback);
}

/* The work's thread has ended when this returns. */
static void make_call(call *c)
{
    pthread_t thread;
    dh_ctx_reset(&c->ctx);
    c->ctx.stop = &c->stop;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->ended, NULL);
    if (start_thread(c, &thread)) {
        watch(c);
        pthread_join(thread, NULL);
    } else {
        c->status = dh_fail(&c->ctx, DH_ENOMEM, "cannot start a thread");
    }
    pthread_cond_destroy(&c->ended);
    pthread_mutex_destroy(&c->lock);
}

PyObject *run(PyObject *module, call *c)
{
    PyObject *text = NULL;
    calls *all = calls_of(module);
    if (!begin_call(all, c)) return NULL;
    make_call(c);
    if (c->raised.type)
        raise_again(c);
    else if (c->status != DH_OK)
        raise_status(c);
    else
        text =
            PyUnicode_DecodeUTF8(c->out.text ? c->out.text : "", (Py_ssize_t)c->out.len, "replace");
    end_call(all, c);
    dh_str_fini(&c->out);
    return text;
}
