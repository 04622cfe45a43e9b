/* Inside src/exchange: a step of dh_export. */
#ifndef DH_EXCHANGE_EXPORT_H
#define DH_EXCHANGE_EXPORT_H

#include "exchange/exchange.h"

/* Turns an export to Megatron-LM into one to NeMo: its lines and its text. False: out of memory. */
bool dh_export_nemo(dh_exported *out, const dh_job *job);

#endif
