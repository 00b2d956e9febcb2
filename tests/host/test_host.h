/* SPDX-License-Identifier: MIT */
#ifndef TEST_HOST_H
#define TEST_HOST_H

void test_cgroup_v1(void **state);
void test_cgroup_v2(void **state);
void test_cgroup_hybrid(void **state);
void test_cgroup_absent(void **state);
void test_cgroup_container(void **state);

#endif
