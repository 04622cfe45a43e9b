/* The devices that were built. */
#include "run/exec/device.h"

#include <stdlib.h>
#include <string.h>

#include "run/cpu/device.h"
#include "run/staged/device.h"

static const dh_device *const devices[] = {&dh_device_cpu, &dh_device_staged};

/* Devices that are begun. */
static const struct {
    const char *name, *missing;
} unfinished[] = {
    {"cuda", "its memory, streams and matrix products are missing (kernels are compiled and tested "
             "on the host, never run on a GPU)"},
};

const dh_device *const *dh_devices(size_t *n)
{
    *n = DH_COUNTOF(devices);
    return devices;
}

static const char *resolved(const char *name)
{
    const char *chosen = getenv("DHELIX_DEVICE");
    if (strcmp(name, "auto") != 0) return name;
    return chosen && *chosen ? chosen : devices[0]->name;
}

const dh_device *dh_device_find(const char *name)
{
    for (size_t i = 0; i < DH_COUNTOF(devices); i++)
        if (strcmp(devices[i]->name, resolved(name)) == 0) return devices[i];
    return NULL;
}

dh_status dh_device_get(dh_ctx *ctx, const char *name, const dh_device **device)
{
    *device = dh_device_find(name);
    if (*device) return DH_OK;
    for (size_t i = 0; i < DH_COUNTOF(unfinished); i++)
        if (strcmp(unfinished[i].name, resolved(name)) == 0)
            return dh_fail(ctx, DH_EMISSING, "device \"%s\" is not complete: %s; use \"%s\"",
                           unfinished[i].name, unfinished[i].missing, devices[0]->name);
    dh_str names = DH_STR_INIT;
    for (size_t i = 0; i < DH_COUNTOF(devices); i++)
        dh_str_printf(&names, "%s%s", i ? ", " : "", devices[i]->name);
    const dh_status st = dh_fail(ctx, DH_EMISSING, "no device is called \"%s\"; there are %s",
                                 resolved(name), names.text ? names.text : "others");
    dh_str_fini(&names);
    return st;
}
