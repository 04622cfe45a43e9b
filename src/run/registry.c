/* The devices that were built. */
#include "run/exec/device.h"

#include <stdlib.h>
#include <string.h>

#include "run/cpu/device.h"
#include "run/staged/device.h"

enum { MOST_DEVICES = 8 };
static const dh_device *devices[MOST_DEVICES] = {&dh_device_cpu, &dh_device_staged};
static size_t n_devices = 2;

/* Devices that some builds have. */
static const struct {
    const char *name, *missing;
} optional[] = {
    {"cuda", "build with -DDH_CUDA=ON, where CUDA is (compiled and tested on the host, never run "
             "on a GPU)"},
};

bool dh_device_add(const dh_device *device)
{
    if (n_devices == MOST_DEVICES) return false;
    devices[n_devices++] = device;
    return true;
}

const dh_devlinks *dh_device_links(const dh_device *device, dh_comm_links kind)
{
    const dh_devlinks *const *links = device->links;
    while (links && *links && (*links)->kind != kind) links++;
    return links ? *links : NULL;
}

const dh_device *const *dh_devices(size_t *n)
{
    *n = n_devices;
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
    for (size_t i = 0; i < n_devices; i++)
        if (strcmp(devices[i]->name, resolved(name)) == 0) return devices[i];
    return NULL;
}

dh_status dh_device_get(dh_ctx *ctx, const char *name, const dh_device **device)
{
    *device = dh_device_find(name);
    if (*device) return DH_OK;
    for (size_t i = 0; i < DH_COUNTOF(optional); i++)
        if (strcmp(optional[i].name, resolved(name)) == 0)
            return dh_fail(ctx, DH_EMISSING, "device \"%s\" is not in this build: %s; use \"%s\"",
                           optional[i].name, optional[i].missing, devices[0]->name);
    dh_str names = DH_STR_INIT;
    for (size_t i = 0; i < n_devices; i++)
        dh_str_printf(&names, "%s%s", i ? ", " : "", devices[i]->name);
    const dh_status st = dh_fail(ctx, DH_EMISSING, "no device is called \"%s\"; there are %s",
                                 resolved(name), names.text ? names.text : "others");
    dh_str_fini(&names);
    return st;
}
