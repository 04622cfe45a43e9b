/* Inside of switch.h: a step's programs, for who builds them and who runs them. */
#ifndef DH_TRAIN_SWITCH_LEGS_H
#define DH_TRAIN_SWITCH_LEGS_H

#include "train/mover.h"
#include "train/switch.h"

/* A program and what runs it. */
typedef struct switch_leg {
    dh_program *program; /* NULL: there is none */
    dh_exec *exec;
    int64_t wire_bytes; /* bytes that move between layouts over wires, of all ranks */
} switch_leg;

/* Away from home: which of two places behind the home it has, with switch.overlap in turn, so that
 * neighbours lie apart. */
typedef struct switch_group {
    dh_recipe recipe; /* of one pass */
    bool at_home;
    int place;
    switch_leg pass[2][2]; /* [adds][goes_on] */
    switch_leg params;     /* away: from home to the group's layout */
    switch_leg grads[2];   /* back, [adds] */
} switch_group;

struct dh_switch {
    const dh_device *device;
    dh_slab *slab;
    dh_comm *comm;
    size_t n;
    switch_group *groups;
    dh_mover *mover; /* NULL: nothing moves beside passes */
};

/* Whether moves of an away group may run during a group's passes: moves to it (for the first group,
 * during the passes at home), or moves back. */
static inline bool dh_switch_is_beside(const switch_group *away, const switch_group *passes,
                                       bool back)
{
    if (away->at_home || away == passes) return false;
    return passes->at_home ? !back : passes->place != away->place;
}

#endif
