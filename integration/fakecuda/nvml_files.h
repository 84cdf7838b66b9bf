// The device files that NVML has open in a process.
#ifndef FAKECUDA_NVML_FILES_H
#define FAKECUDA_NVML_FILES_H

int files_open(void); // false where it cannot work
int files_one(void);  // one more of them, or -1
void files_close(void);
int files_work(void); // false where something else is in their place

#endif
