"""A machine that drives the real scheduler and controllers through orders of events, with two gangs and a bare pod.

Each write of the hub must keep the rules of :class:`~tests.fakes.memory_checks.WriteChecks`. After any events, a time
without faults must bring every pod to a place, and after the deletion of all pods no job and no pod may be left.
"""

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bridge import names
from bridge.workload import links, pods
from tests.examples import examples
from tests.fakes.memory_world import NODES, PLACES, UNITS, MemoryWorld, path_of, places
from tests.unit.scheduler.hub_machine import FAULTS, NUMBER

ROUNDS = 60
REST = 31
"""Seconds between two looks at a hub that must not write any more."""
ENDS = [
    *[(state,) for state in ("CANCELLED", "NODE_FAIL", "TIMEOUT", "FAILED", "PREEMPTED", "PENDING")],
    *[("FAILED", "COMPLETING"), ("CANCELLED", "COMPLETING"), ("PENDING", "COMPLETING", "REQUEUED")],
    *[("PENDING", "REQUEUE_HOLD"), ("PENDING", "SPECIAL_EXIT")],
]
CHANGES = [("RUNNING",), ("SUSPENDED",), ("RUNNING", "COMPLETING"), ("RUNNING", "CONFIGURING"), ("RUNNING", "NEW_FLAG")]
"""States of a job that keeps its nodes."""
THEN = ("", "wait", "kill")


class Hub(MemoryWorld, RuleBasedStateMachine):
    """The owners create pods, Slurm starts and ends jobs, kubelets run pods, and processes are killed."""

    # --- owners and users ---------------------------------------------------------------------------------------------
    @initialize(
        units=st.sets(st.sampled_from(sorted(UNITS)), min_size=1),
        admitted=st.booleans(),
        copies_labels=st.booleans(),
        apart=st.booleans(),
    )
    def first_pods(self, units, admitted, copies_labels, apart):
        """Admission sets the finalizer; API servers before 1.33 do not copy the labels of a Binding.

        Scheduler and controllers may be processes of their own, with different views of Slurm.
        """
        self.hub.apart = apart
        self.hub.restart(inherited=False)
        self.finalizers = [names.FINALIZER] if admitted else []
        self.hub.kube.copies_labels = copies_labels
        for place in PLACES:
            if place[0] in units:
                self.create(place)
        self.look()

    @precondition(lambda self: self.absent())
    @rule(number=NUMBER, whole=st.booleans(), starts=st.booleans())
    def owner(self, number, whole, starts):
        """A controller creates the missing pods of a group, or one of them."""
        absent = self.absent()
        name, slot = absent[number % len(absent)]
        for place in absent:
            if place == (name, slot) or (whole and place[0] == name):
                self.create(place)
        self.may_start(starts)

    @precondition(lambda self: self.unfinished())
    @rule(number=NUMBER, whole=st.booleans(), starts=st.booleans())
    def delete(self, number, whole, starts):
        """A user deletes a pod, or all pods of a group that have not succeeded (docs/users/groups.md)."""
        everyone = self.unfinished()
        key = links.key(everyone[number % len(everyone)])
        for index, pod in enumerate(everyone):
            if index == number % len(everyone) or (whole and links.key(pod) == key):
                self.hub.kube.request_deletion(path_of(pod))
        self.may_start(starts)

    @precondition(lambda self: self.changeable())
    @rule(number=NUMBER, whole=st.booleans(), starts=st.booleans())
    def change(self, number, whole, starts):
        """A user changes what a waiting pod, or all waiting pods of a group request, or changes it back."""
        keys = sorted({links.key(pod) for pod in self.changeable()})
        own = [pod for pod in self.changeable() if links.key(pod) == keys[number % len(keys)]]
        for pod in own if whole else own[-1:]:
            self.request(pod)
        self.may_start(starts)

    @rule(number=NUMBER, starts=st.booleans())
    def cordon(self, number, starts):
        node = self.hub.kube.get(f"/api/v1/nodes/{NODES[number]}")
        node["spec"]["unschedulable"] = not node["spec"].get("unschedulable")
        self.hub.kube.put(f"/api/v1/nodes/{NODES[number]}", node)
        self.may_start(starts)

    @rule(number=NUMBER, starts=st.booleans())
    def block(self, number, starts):
        """A pod of another scheduler takes all CPUs of a node, or ends."""
        self.hub.block(NODES[number])
        self.may_start(starts)

    def may_start(self, starts):
        """Start jobs right after an event, so that the hub decides about both at once."""
        if starts:
            self.look(starts)

    # --- kubelets -----------------------------------------------------------------------------------------------------
    @precondition(lambda self: self.running())
    @rule(number=NUMBER, phase=st.sampled_from(["Failed", "Succeeded"]))
    def kubelet(self, number, phase):
        """The containers of a pod end."""
        pod = self.running()[number % len(self.running())]
        self.finish(pod, "Failed" if pods.is_deleted(pod) else phase)

    @precondition(lambda self: self.running())
    @rule(number=NUMBER, ends=st.booleans(), starts=st.booleans())
    def successor(self, number, ends, starts):
        """A pod fails and is created again later; the others of its group run, or have succeeded."""
        pod = self.running()[number % len(self.running())]
        self.wait(2)
        self.finish(pod, "Failed")
        self.hub.kube.request_deletion(path_of(pod))
        self.look()
        for other in self.running() if ends else ():
            if links.key(other) == links.key(pod) and not pods.is_deleted(other):
                self.finish(other, "Succeeded")
        name, _, slot = pod["metadata"]["name"].rpartition("-")
        if (name, int(slot)) in self.absent():
            self.create((name, int(slot)))
        self.may_start(starts)

    @precondition(lambda self: self.running())
    @rule(number=NUMBER, sees=st.booleans())
    def again(self, number, sees):
        """All pods of a unit fail and are deleted; the controllers release them, and their owner creates them again.

        The scheduler decides about the new pods before it polls.
        """
        hub, key = self.hub, links.key(self.running()[number % len(self.running())])
        for pod in self.unfinished():
            if links.key(pod) == key:
                if pods.is_bound(pod):
                    self.finish(pod, "Failed")
                hub.kube.request_deletion(path_of(pod))
        hub.clock.advance(0.01)
        hub.own_poller.poll()
        if sees:
            hub.deliver()
        for _ in range(2):
            hub.controllers.reconcile()
            while hub.queues[1].calls:
                hub.run(lambda: hub.queues[1].run(0))
            hub.deliver()
        hub.clock.advance(0.01)
        for place in self.absent():
            self.create(place)
        hub.deliver()
        if hub.poller.snapshot.sequence:
            hub.scheduler.reconcile()
        while hub.queues[0].calls:
            hub.run(lambda: hub.queues[0].run(0))

    # --- Slurm --------------------------------------------------------------------------------------------------------
    @precondition(lambda self: self.jobs("PENDING"))
    @rule(number=NUMBER)
    def start(self, number):
        jobs = self.jobs("PENDING")
        self.hub.slurm.start(jobs[number % len(jobs)])

    @precondition(lambda self: self.hub.slurm.live())
    @rule(number=NUMBER, states=st.sampled_from(ENDS))
    def end(self, number, states):
        """A job ends, or is requeued."""
        self.end_job(self.live_job(number), *states)

    @precondition(lambda self: self.jobs("PENDING"))
    @rule(number=NUMBER, states=st.sampled_from(ENDS), polls=st.integers(1, 3))
    def end_late(self, number, states, polls):
        """A job starts and ends while the binds of its pods wait for a worker."""
        job = self.jobs("PENDING")[number % len(self.jobs("PENDING"))]
        self.hub.run_all()
        if self.hub.slurm.start(job):
            self.poll()
            self.hub.deliver()
            self.hub.scheduler.reconcile()
            self.end_job(job, *states)
            for _ in range(polls):
                self.poll()
                self.hub.scheduler.reconcile()
            self.hub.run_all()

    def end_job(self, job, *states):
        self.hub.slurm.moved.add(job.job_id)
        job.set(*states)

    @precondition(lambda self: self.hub.slurm.live())
    @rule(state=st.sampled_from(["FAILED", "NODE_FAIL", "COMPLETED"]))
    def end_again_and_again(self, state):
        """Each job without a pod ends: after the first one, podbridge waits before it submits others."""
        before, restarts = self.checks.submissions.copy(), self.hub.restarts
        for _ in range(10):  # two answers of Slurm confirm an end
            self.look()
            for job in self.hub.slurm.live():
                if not self.checks.started(job):
                    self.end_job(job, state)
        if self.hub.restarts == restarts:
            assert all(count <= 3 for count in (self.checks.submissions - before).values()), self.story()

    @precondition(lambda self: self.jobs("RUNNING") + self.jobs("SUSPENDED"))
    @rule(number=NUMBER, states=st.sampled_from(CHANGES))
    def change_states(self, number, states):
        """A job is suspended or resumed, its nodes are configured, or it is about to end."""
        jobs = self.jobs("RUNNING") + self.jobs("SUSPENDED")
        jobs[number % len(jobs)].set(*states)

    @rule(number=NUMBER, state=st.sampled_from(["", "POWERED_DOWN", "POWERING_UP"]), ready=st.booleans())
    def power_saving(self, number, state, ready):
        """Power saving stops or starts a node; its kubelet is ready or not."""
        self.power(NODES[number], state, ready)

    @precondition(lambda self: self.jobs("PENDING"))
    @rule(number=NUMBER, seconds=st.sampled_from([1, 65, 130]), ends=st.booleans())
    def squeeze(self, number, seconds, ends):
        """Pods of another scheduler fill the nodes of a job that starts, for a time in which it may be given back."""
        job = self.jobs("PENDING")[number % len(self.jobs("PENDING"))]
        if self.hub.slurm.start(job):
            for node in job.nodes:
                if node not in self.hub.blockers:
                    self.hub.block(node)
            for _ in range(2):
                self.look()
                self.wait(seconds)
            for node in [*self.hub.blockers] if ends else ():
                self.hub.block(node)

    @precondition(lambda self: self.hub.slurm.live())
    @rule(number=NUMBER, reuse=st.booleans())
    def lose(self, number, reuse):
        """slurmctld loses a job, and assigns its id again: at once to another cluster, or to the next submission."""
        self.hub.slurm.lose(self.live_job(number), reuse=reuse)

    @precondition(lambda self: 0 < len(self.hub.slurm.live()) < 2 * len(UNITS))
    @rule(number=NUMBER)
    def copy(self, number):
        """A request that was delayed for longer than podbridge waits becomes a second job."""
        request = self.live_job(number).request
        self.hub.slurm.add(request)
        self.copied |= set(request.link.keys)

    @precondition(lambda self: self.hub.slurm.live())
    @rule(number=NUMBER)
    def hide(self, number):
        """One answer of Slurm lacks a job that runs; two in a row would be believed."""
        self.hub.poller.hidden = self.live_job(number).job_id
        self.look()
        self.poll()

    @precondition(lambda self: not self.hub.slurm.fault)
    @rule(fault=st.sampled_from(["late", "unanswered", "lost", "unavailable", "refused"]), then=st.sampled_from(THEN))
    def next_submission(self, fault, then):
        """The next submission fails; then, some seconds pass, or the process is killed."""
        self.hub.slurm.fault, self.unheard = fault, 0
        if then:
            self.look()
            self.wait(2) if then == "wait" else self.hub.restart()
            self.look()

    @precondition(lambda self: self.hub.slurm.late)
    @rule()
    def arrive_late(self):
        """A request that a proxy has delayed reaches slurmctld; podbridge assumes that this takes less than 5 s."""
        self.unheard = 0
        while self.hub.slurm.late:
            self.hub.slurm.add(self.hub.slurm.late.pop())

    # --- the hub ------------------------------------------------------------------------------------------------------
    @rule(offset=st.sampled_from([0, 7200, -7200, 400 * 86400]))
    def set_time(self, offset):
        """A user sets the time of day of the hub's machine."""
        self.hub.clock.offset = offset

    @rule(seconds=st.sampled_from([6, 1, 130]))
    def wait(self, seconds):
        self.unheard += seconds
        if self.unheard > 4:
            self.arrive_late()
        self.hub.clock.advance(seconds)

    @rule(
        polls=st.sampled_from(["all", "controllers", ""]),
        delivers=st.booleans(),
        loops=st.sampled_from([(0,), (1,), (0, 1), (1, 0)]),
    )
    def decide(self, polls, delivers, loops):
        if polls == "all" or not self.hub.poller.snapshot.sequence:
            self.poll()
        elif polls:
            self.hub.own_poller.poll()
        if delivers:
            self.hub.deliver()
        for number in loops:
            self.hub.loops[number].reconcile()

    @rule(number=NUMBER)
    def decide_some(self, number):
        """The loop decides for one pod, as after a change of it."""
        self.poll()
        self.hub.deliver()
        uids = sorted(self.hub.pods.picked())
        self.hub.scheduler.reconcile_some({uids[number % len(uids)]} if uids else set())

    def poll(self):
        self.hub.clock.advance(0.01)
        self.hub.poll()

    @precondition(lambda self: self.hub.queues[0].calls or self.hub.queues[1].calls)
    @rule(numbers=st.lists(NUMBER, min_size=1, max_size=4))
    def act(self, numbers):
        """Some of the queued calls run, in any order."""
        for number in numbers:
            queue = self.hub.queues[0] if self.hub.queues[0].calls else self.hub.queues[1]
            if queue.calls:
                self.hub.run(lambda queue=queue, number=number: queue.run(number))

    @rule(times=st.integers(1, 3), starts=st.booleans())
    def looks(self, times, starts):
        for _ in range(times):
            self.look(starts)

    def look(self, starts=False):
        """The usual order: finish what is queued, then poll, deliver, decide, act."""
        hub = self.hub
        hub.run_all()
        for job in self.jobs("PENDING") if starts else ():
            hub.slurm.start(job)
        quiet = not hub.poller.hidden and not hub.writes.faults
        self.poll()
        for number in (0, 1):
            hub.deliver()
            if not hub.poller.snapshot.sequence:
                self.poll()
            hub.loops[number].reconcile()
            before = hub.restarts, [job for job in hub.slurm.live() if not self.checks.started(job)]
            self.checks.fresh = quiet and number == 0
            hub.run_all()
            if self.checks.fresh and hub.restarts == before[0]:
                assert not any(map(self.checks.half_bound, before[1])), self.story()
            self.checks.fresh = False

    @rule(writes=st.integers(1, 8))
    def kill(self, writes):
        """SIGKILL after a number of writes; the requests of the killed process settle while its lease expires."""
        self.hub.writes.kill_after = writes

    @precondition(lambda self: not self.hub.writes.faults)
    @rule(faults=FAULTS, looks=st.booleans())
    def no_answer(self, faults, looks):
        """The API server or slurmctld does not answer some of the next writes, which it may have carried out."""
        self.hub.writes.faults = faults
        if looks:
            self.look()

    @rule(stopped=st.booleans())
    def restart(self, stopped):
        """SIGKILL between two decisions, or a clean stop, after which no request is open."""
        if stopped:
            self.arrive_late()
        self.hub.restart(inherited=not stopped)

    @rule(starts=st.booleans(), late=st.booleans())
    def depose(self, starts, late):
        """The process is stopped after its decisions, and loses its lease; when it continues, it writes nothing."""
        hub = self.hub
        for job in self.jobs("PENDING") if starts else ():
            hub.slurm.start(job)
        self.poll()
        hub.deliver()
        for loop in hub.loops:
            loop.reconcile()
        former = hub.depose()
        if late:
            self.look()
        before = hub.writes.count
        for queue in former:
            while queue.calls:
                queue.run(0)
        assert hub.writes.count == before, "a process without the lease has written"

    # --- what must hold -----------------------------------------------------------------------------------------------
    @invariant()
    def no_place_is_used_twice(self):
        used = [
            (links.key(pod), pods.job_id(pod), pod["spec"]["nodeName"])
            for pod in self.hub.kube.pods()
            if pods.is_bound(pod) and not pods.is_finished(pod)
        ]
        assert len(used) == len(set(used)), used

    @invariant()
    def no_pod_runs_on_a_node_that_its_job_has_given_back(self):
        for pod in self.running():
            job = self.hub.slurm.jobs.get(pods.job_id(pod))
            ours = job is not None and job.ours and job.lives and links.key(pod) in job.request.link.keys
            if ours and job.job_id not in self.hub.slurm.moved:
                assert (job.job_id, pod["spec"]["nodeName"]) in places(job), self.story()

    @invariant()
    def no_group_has_two_jobs(self):
        keys = [job.request.link.keys for job in self.hub.slurm.live() if self.copied.isdisjoint(job.request.link.keys)]
        assert len(keys) == len(set(keys)), self.story()

    @invariant()
    def the_members_of_a_group_run_in_one_job(self):
        silent = {name for name in NODES if not self.is_ready(name)}
        seen = [pod for pod in self.running() if not (pods.is_deleted(pod) and pod["spec"]["nodeName"] in silent)]
        found = {(links.key(pod), pods.job_id(pod)) for pod in seen}
        assert len(found) == len({key for key, _ in found}), self.story()

    def teardown(self):
        """Let everything come to an end, and check that nothing is missing, twice or left."""
        hub = self.hub
        hub.writes.kill_after, hub.slurm.fault, hub.writes.faults = None, "", []
        for name in NODES:
            self.power(name, "", True)
        for job in hub.slurm.live():
            job.set("RUNNING" if job.state == "SUSPENDED" else job.state)
        self.come_to_rest()
        for name in NODES:
            hub.cordon(name, False)
        for name in [*hub.blockers]:
            hub.block(name)
        for pod in self.changeable():
            self.request(pod, back=True)
        if self.made % 2:  # nobody creates the deleted pods again: what is left without them must go
            self.settle(lambda: len(hub.slurm.live()) <= len({links.key(pod) for pod in hub.kube.pods()}))
        self.settle(self.every_pod_has_a_place, owners=True)
        for _ in range(len(PLACES)):
            for pod in self.running():
                self.finish(pod, "Succeeded")
            self.settle(self.every_pod_has_a_place, owners=True)
        assert self.done == set(PLACES), self.story()
        assert not hub.slurm.live(), self.story()
        for pod in hub.kube.pods():
            hub.kube.request_deletion(path_of(pod))
        self.settle(lambda: not hub.kube.pods() and not hub.slurm.live())

    def come_to_rest(self):
        """Without events, writes end, and no job keeps nodes on which no pod was started."""
        for _ in self.hub.slurm.live():  # each look cancels one second job
            self.look()
        for _ in range(8):
            self.wait(130)
            self.look()
            for pod in self.running():
                if pods.is_deleted(pod):
                    self.finish(pod, "Failed")
        before = self.hub.writes.count
        for _ in range(3):
            self.wait(REST)
            self.look()
        assert self.hub.writes.count == before, self.story()
        assert all(self.checks.started(job) for job in self.hub.slurm.live() if job.nodes), self.story()

    def settle(self, good, owners=False):
        for number in range(ROUNDS):
            self.round(owners, 6 if number < ROUNDS / 3 else 20)  # a back-off lasts for up to 300 s
            if good():
                return
        raise AssertionError(self.story())

    def round(self, owners, seconds):
        hub = self.hub
        self.wait(seconds)
        for pod in hub.kube.pods():
            if pods.is_bound(pod) and not pods.is_finished(pod) and pods.is_deleted(pod):
                self.finish(pod, "Failed")
            elif owners and pod["status"]["phase"] == "Failed" and not pods.is_deleted(pod):
                hub.kube.request_deletion(path_of(pod))
        for place in self.absent() if owners else ():
            self.create(place)
        for _ in range(2):
            self.look(starts=True)
            self.no_place_is_used_twice()
            self.no_group_has_two_jobs()
            self.the_members_of_a_group_run_in_one_job()


# a failure shows its steps as they were tried: to shrink them would take minutes
Hub.TestCase.settings = settings(
    max_examples=examples(20, 60), stateful_step_count=50, phases=[Phase.reuse, Phase.generate]
)
TestHub = Hub.TestCase
