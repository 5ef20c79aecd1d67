"""Which hop, reason and person an answer names."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from datum_compute.answers.hops import Hop
from datum_compute.answers.seen import Gap, Seen
from datum_compute.answers.walk import City, Verdict
from datum_compute.answers.why import Answer, why
from datum_compute.api.labels import ROLLOUT_PAUSED
from datum_compute.api.reasons import Acts
from datum_compute.kube.kinds import LEASE
from datum_compute.kube.meta import timestamp
from tests.answers.sightings import (
    CITIES,
    binding,
    claim,
    cluster,
    deployment,
    entitlement,
    event,
    everything,
    instance,
    namespace,
    of_project,
    offer,
    policy,
    read,
    workload,
)
from tests.cli.conftest import NOW, condition

AGO = NOW - timedelta(minutes=4)


def seen(*, user: bool = False, **changes: Any) -> Seen:
    whole = replace(everything(), **changes)
    return of_project(whole) if user else whole


def dfw(answer: Answer) -> City:
    return next(city for city in answer.cities if city.place.city == "DFW")


def with_site(city: str = "DFW", **parts: Any) -> dict[str, Any]:
    whole = everything().sites
    return {"sites": {**whole, city: replace(whole[city], **parts)}}


def with_hub(**parts: Any) -> dict[str, Any]:
    return {"hub": replace(everything().hub, **parts)}


def ready(reason: str, message: str = "why", status: str = "False") -> Any:
    return condition("Ready", status, reason, message, since=AGO)


def quota(reason: str, message: str = "why", status: str = "False") -> Any:
    return condition("QuotaGranted", status, reason, message, since=AGO)


def troubled(*conditions: Any, **details: Any) -> dict[str, Any]:
    """The second instance in DFW is not ready."""
    broken = instance("DFW", 1, *conditions, **details)
    at_site = (instance("DFW", 0), broken)
    short = deployment("DFW", 1)
    return {
        "deployments": (short, deployment("AMS")),
        "instances": (*at_site, instance("AMS", 0), instance("AMS", 1)),
        **with_hub(deployments=(short, deployment("AMS"))),
        **with_site(deployments=(short,), instances=at_site),
    }


UNSENT = deployment("DFW", 2, generation=2, observed=1)
CHANGED = {"deployments": (UNSENT, deployment("AMS")), "changed": AGO}
"""DFW was changed, and its site has not answered."""
SENT = (UNSENT, deployment("AMS"))


def changed(hub: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    """DFW was changed and sent to the hub; its cell has the earlier version."""
    return {**CHANGED, **with_hub(deployments=SENT, **(hub or {})), **parts}


Case = tuple[dict[str, Any], Hop, str, Acts, str]

CASES: dict[str, Case] = {
    "access pending": (
        {**CHANGED, "entitlements": (entitlement("PendingApproval"),)},
        *(Hop.ACCESS, "AccessPending", Acts.ADMIN, "access waits for approval"),
    ),
    "access denied": (
        {**CHANGED, "entitlements": (entitlement("Rejected"),)},
        *(Hop.ACCESS, "AccessPending", Acts.ADMIN, "access was denied"),
    ),
    "never looked at": (
        {"workload": workload(finalizers=[], observed=0), "deployments": ()},
        *(Hop.MANAGER, "Unanswered", Acts.PLATFORM, "nobody has looked at it; project demo is not served"),
    ),
    "not looked at since": (
        {"workload": workload(generation=2), "changed": AGO},
        *(Hop.MANAGER, "Unanswered", Acts.PLATFORM, "nobody has looked at it"),
    ),
    "network missing": (
        {
            "workload": workload(
                generation=2,
                conditions=[
                    condition("Available", "False", "NetworkNotFound", "Unable to find networks: default", since=AGO)
                    | {"observedGeneration": 2}
                ],
            ),
            "networks": (),
        },
        *(Hop.NETWORK, "NetworkNotFound", Acts.YOU, "network default does not exist"),
    ),
    "not offered": (
        {"deployments": (deployment("AMS"),), "offers": (offer("AMS"), offer("SIN"))},
        *(Hop.OFFER, "NoMatchingLocation", Acts.PLATFORM, "not offered to this project, which has AMS, SIN"),
    ),
    "paused": (
        {
            "workload": workload(generation=2, observed=2, updated=2, annotations={ROLLOUT_PAUSED: "true"}),
            "deployments": (deployment("DFW", image="registry.example/shop:old"), deployment("AMS")),
        },
        *(Hop.ROLLOUT, "RolloutPaused", Acts.YOU, "resume"),
    ),
    "name taken": (
        {
            "workload": workload(
                conditions=[
                    condition(
                        "Placed",
                        "False",
                        "DeploymentNameTaken",
                        "Deployment shop-default-dfw belongs to workload b (uid 7); rename this workload",
                    )
                ]
            ),
            "deployments": (deployment("AMS"),),
        },
        *(Hop.DEPLOYMENT, "DeploymentNameTaken", Acts.YOU, "belongs to workload b"),
    ),
    "nothing created": (
        {"deployments": (deployment("AMS"),), "changed": AGO},
        *(Hop.DEPLOYMENT, "Unanswered", Acts.PLATFORM, "nothing was created for DFW"),
    ),
    "hub without it": (
        {**CHANGED, **with_hub(deployments=(deployment("AMS"),))},
        *(Hop.HUB, "FederationFailed", Acts.PLATFORM, "the way to the sites is interrupted"),
    ),
    "hub with an earlier version": (
        CHANGED,
        *(Hop.HUB, "FederationFailed", Acts.PLATFORM, "the way to the sites is interrupted"),
    ),
    "hub away": (
        {**CHANGED, **with_hub(deployments=Gap.AWAY, namespace=Gap.AWAY)},
        *(Hop.HUB, "FederationFailed", Acts.PLATFORM, "the way to the sites is interrupted"),
    ),
    "hub refuses": (
        {
            **changed(),
            "deployments": (
                deployment(
                    "DFW",
                    generation=2,
                    conditions=[condition("Federated", "False", "WriteForbidden", "X was refused: no", since=AGO)],
                ),
            ),
        },
        *(Hop.HUB, "FederationFailed", Acts.PLATFORM, "not allowed to write there"),
    ),
    "hub namespace going": (
        changed({"namespace": namespace(deletionTimestamp=timestamp(AGO), finalizers=["example.com/hold"])}),
        *(Hop.HUB, "NamespaceTerminating", Acts.PLATFORM, "is being removed, held by example.com/hold"),
    ),
    "policy missing": (
        changed({"policies": (policy("AMS"),)}),
        *(Hop.POLICY, "PolicyMissing", Acts.PLATFORM, "nothing routes DFW"),
    ),
    "policy edited": (
        changed({"policies": (policy("DFW", clusterNames=["cell-ord"]),)}),
        *(Hop.POLICY, "PolicyEdited", Acts.PLATFORM, "narrowed to cell-ord by hand"),
    ),
    "no site": (
        changed({"clusters": (cluster("AMS"),)}),
        *(Hop.SITE, "NoMatchingLocation", Acts.PLATFORM, "no site serves DFW"),
    ),
    "site spelled otherwise": (
        changed({"clusters": (cluster("dfw", name="dfw-1"),)}),
        *(Hop.SITE, "NoMatchingLocation", Acts.PLATFORM, 'dfw-1 serves "dfw", asked is "DFW"'),
    ),
    "site away": (
        changed({"clusters": (cluster("DFW", ready="False"),)}),
        *(Hop.SITE, "SiteAway", Acts.PLATFORM, "no word from DFW; what runs there goes on"),
    ),
    "binding of an earlier deployment": (
        changed({"bindings": (binding("DFW", owner="earlier"),)}),
        *(Hop.BINDING, "BindingHeld", Acts.PLATFORM, "held by an earlier deployment of that name"),
    ),
    "binding missing": (
        changed({"bindings": ()}),
        *(Hop.BINDING, "NotScheduled", Acts.PLATFORM, "Karmada has not taken it up"),
    ),
    "binding without a place": (
        changed({"bindings": (binding("DFW", clusters=0),)}),
        *(Hop.BINDING, "NotScheduled", Acts.PLATFORM, "Karmada has chosen no site"),
    ),
    "not schedulable": (
        changed(
            {
                "bindings": (
                    binding("DFW", conditions=[condition("Scheduled", "False", "NoClusterFit", "0/2 clusters fit")]),
                )
            }
        ),
        *(Hop.BINDING, "NotScheduled", Acts.PLATFORM, "Karmada cannot place it: 0/2 clusters fit"),
    ),
    "not applied": (
        changed(
            {
                "bindings": (
                    binding(
                        "DFW",
                        aggregatedStatus=[
                            {"applied": False, "appliedMessage": 'no matches for kind "X" in version "v"'}
                        ],
                    ),
                )
            }
        ),
        *(Hop.WORK, "NotApplied", Acts.PLATFORM, "the site does not know this kind"),
    ),
    "not in the cell": (
        changed(),
        *(Hop.CELL, "Unanswered", Acts.PLATFORM, "DFW has an earlier version so far"),
    ),
    "the cell does not act": (
        changed(**with_site(deployments=(UNSENT,))),
        *(Hop.CELL, "Unanswered", Acts.PLATFORM, "DFW has it and does not act"),
    ),
    "the old one stops": (
        troubled(deletionTimestamp=timestamp(NOW - timedelta(seconds=20))),
        *(Hop.INSTANCES, "Stopping", Acts.WAIT, "the old one is stopping"),
    ),
    "name of an instance taken": (
        {
            "deployments": (deployment("DFW", 1), deployment("AMS")),
            "instances": (instance("DFW", 0), instance("AMS", 0), instance("AMS", 1)),
            **with_site(
                deployments=(
                    deployment(
                        "DFW",
                        1,
                        conditions=[condition("ReplicasReady", "False", "InstanceNameTaken", "taken", since=AGO)],
                    ),
                ),
                instances=(instance("DFW", 0),),
            ),
        },
        *(Hop.INSTANCES, "InstanceNameTaken", Acts.PLATFORM, "something else has that name"),
    ),
    "not created yet": (
        {
            "deployments": (deployment("DFW", 1), deployment("AMS")),
            "instances": (instance("DFW", 0), instance("AMS", 0), instance("AMS", 1)),
            **with_site(deployments=(deployment("DFW", 1),), instances=(instance("DFW", 0),)),
        },
        *(Hop.INSTANCES, "InstancesProvisioning", Acts.WAIT, "instances are being created"),
    ),
    "quota exceeded": (
        troubled(quota("QuotaExceeded", "Requested 1, 0 available."), ready("PendingQuota"), gates=["Quota"]),
        *(Hop.GATES, "QuotaExceeded", Acts.YOU, "Requested 1, 0 available."),
    ),
    "quota cannot be asked": (
        troubled(quota("QuotaBackendUnavailable"), ready("SchedulingGatesPresent"), gates=["Quota"]),
        *(Hop.GATES, "QuotaBackendUnavailable", Acts.PLATFORM, "quota cannot be asked"),
    ),
    "quota undecided": (
        {
            **troubled(quota("QuotaNoBudget", status="Unknown"), ready("SchedulingGatesPresent"), gates=["Quota"]),
            "claims": (claim("shop-default-dfw-1"),),
        },
        *(Hop.GATES, "QuotaNoBudget", Acts.PLATFORM, "nobody has decided the request"),
    ),
    "network being set up": (
        troubled(quota("QuotaAvailable", status="True"), ready("SchedulingGatesPresent"), gates=["Network"]),
        *(Hop.GATES, "NetworkProvisioning", Acts.WAIT, "the network is being set up"),
    ),
    "network failed": (
        troubled(quota("QuotaAvailable", status="True"), ready("NetworkFailedToCreate", "no range"), gates=["Network"]),
        *(Hop.GATES, "NetworkFailedToCreate", Acts.PLATFORM, "no range"),
    ),
    "foreign gate": (
        troubled(ready("SchedulingGatesPresent"), gates=["Other"]),
        *(Hop.GATES, "SchedulingGatesPresent", Acts.PLATFORM, "gate Other, which nobody here removes"),
    ),
    "image": (
        troubled(ready("ImageUnavailable", "The image shop:2 cannot be pulled")),
        *(Hop.RUNTIME, "ImageUnavailable", Acts.YOU, "image shop:2 cannot be pulled"),
    ),
    "crash": (
        troubled(ready("InstanceCrashing", "exit 1")),
        *(Hop.RUNTIME, "InstanceCrashing", Acts.YOU, "the process keeps exiting: exit 1"),
    ),
    "no provider": (
        troubled(
            condition("Programmed", "False", "PendingProgramming", since=AGO),
            ready("PendingProgramming"),
            finalizers=[],
        ),
        *(Hop.RUNTIME, "PendingProgramming", Acts.WAIT, "no provider has touched it"),
    ),
    "status not returned": (
        {
            "deployments": (deployment("DFW", 1), deployment("AMS")),
            **with_hub(deployments=(deployment("DFW", 2), deployment("AMS"))),
        },
        *(Hop.BACK, "StatusNotReturned", Acts.STALLED, "the hub knows 2 ready, the project 1"),
    ),
    "interpreter missing": (
        {
            "deployments": (deployment("DFW", status=False), deployment("AMS")),
            **with_hub(deployments=(deployment("DFW", status=False), deployment("AMS"))),
            "instances": tuple(
                instance(city, ordinal, condition("Ready", "True", "Available", since=AGO))
                for city in CITIES
                for ordinal in range(2)
            ),
            **with_site(
                instances=tuple(
                    instance("DFW", ordinal, condition("Ready", "True", "Available", since=AGO)) for ordinal in range(2)
                )
            ),
        },
        *(Hop.BACK, "StatusNotReturned", Acts.PLATFORM, "2 of 2 run; the hub shows no status: interpreter missing"),
    ),
    "not shown": (
        {
            "instances": (instance("AMS", 0), instance("AMS", 1)),
            **with_site(
                instances=tuple(
                    instance("DFW", ordinal, condition("Ready", "True", "Available", since=AGO)) for ordinal in range(2)
                )
            ),
        },
        *(Hop.PROJECTION, "ProjectionMissing", Acts.PLATFORM, "2 run, 0 are shown"),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_first_hop_that_is_not_passed_is_the_answer_of_the_city(case: Case) -> None:
    changes, hop, reason, acts, words = case
    city = dfw(why(seen(**changes), NOW))
    assert city.finding is not None
    assert (city.finding.hop, city.finding.reason, city.acts) == (hop, reason, acts)
    assert words in city.finding.message
    states = [step.state.value for step in city.path]
    assert states.count("blocked") == 1
    assert set(states[states.index("blocked") + 1 :]) <= {"next"}


def test_nothing_blocks_a_workload_whose_instances_all_run_the_newest_version() -> None:
    answer = why(seen(revision=8), NOW)
    assert (answer.verdict, answer.blocks) == (Verdict.FINE, ())
    assert answer.sentence == "Nothing blocks shop: 4 of 4 instances in 2 cities run revision #8."
    assert why(seen(user=True), NOW).sentence == (
        "Nothing blocks shop: 4 of 4 instances in 2 cities run the newest version."
    )


def test_what_is_broken_behind_a_city_that_has_answered_is_only_a_note() -> None:
    behind = with_hub(clusters=(cluster("DFW", ready="False"),), policies=())
    answer = why(seen(**behind), NOW)
    assert answer.verdict is Verdict.FINE
    assert answer.notes == ("There is no word from DFW at the moment; what runs there goes on.",)


def test_a_user_is_told_that_a_request_is_on_its_way() -> None:
    answer = why(seen(user=True, **CHANGED), NOW)
    city = dfw(answer)
    assert city.finding is not None
    assert (city.finding.hop, city.finding.reason, city.verdict) == (Hop.WAY, "OnItsWay", Verdict.STALLED)
    assert city.finding.message == "on its way to DFW"
    assert [(gap.plane, gap.why) for gap in answer.unread] == [("hub", Gap.NOT_ASKED)]
    assert city.ready is None  # what is counted answers an earlier request


def test_a_user_learns_of_an_outage_by_the_event() -> None:
    message = "The way to the site is interrupted; what runs goes on"
    events = (event("shop-default-dfw", "FederationFailed", message, first=NOW),)
    city = dfw(why(seen(user=True, **CHANGED, events=events), NOW))
    assert city.finding is not None
    assert (city.finding.hop, city.finding.message) == (Hop.HUB, message)


def test_an_outage_before_the_request_explains_nothing() -> None:
    events = (event("shop-default-dfw", "FederationFailed", "interrupted", first=AGO - timedelta(minutes=1)),)
    city = dfw(why(seen(user=True, **CHANGED, events=events), NOW))
    assert city.finding is not None
    assert city.finding.hop is Hop.WAY


def test_an_instance_of_the_newest_version_proves_that_the_request_has_arrived() -> None:
    broken = (instance("DFW", 0), instance("DFW", 1, ready("InstanceCrashing")))
    city = dfw(why(seen(user=True, **CHANGED, instances=broken), NOW))
    assert city.finding is not None
    assert city.finding.reason == "InstanceCrashing"


def test_trouble_of_an_earlier_version_blocks_nothing() -> None:
    broken = (instance("DFW", 0), instance("DFW", 1, ready("InstanceCrashing"), hash_="earlier"))
    city = dfw(why(seen(user=True, **CHANGED, instances=broken), NOW))
    assert city.finding is not None
    assert city.finding.hop is Hop.WAY


def test_kinds_that_the_hub_does_not_serve_are_passed() -> None:
    city = dfw(why(seen(**changed({"bindings": Gap.ABSENT})), NOW))
    assert city.finding is not None
    assert city.finding.hop is Hop.CELL


# Only a server that answered proves absence


@pytest.mark.parametrize("gap", [Gap.DENIED, Gap.AWAY, Gap.NOT_ASKED])
@pytest.mark.parametrize("part", ["entitlements", "networks", "offers", "claims", "events"])
def test_what_could_not_be_read_blames_nobody(part: str, gap: Gap) -> None:
    fresh = {"workload": workload(observed=0, finalizers=[]), "deployments": (), "changed": NOW}
    answer = why(seen(user=True, **fresh, **{part: gap}), NOW)
    assert {city.verdict for city in answer.cities} == {Verdict.WAITING}


def test_a_reader_without_rights_is_told_whom_to_ask() -> None:
    short = (deployment("DFW", 1), deployment("AMS"))
    city = dfw(why(seen(user=True, deployments=short, instances=Gap.DENIED), NOW))
    assert city.finding is not None
    assert (city.finding.reason, city.acts, city.verdict) == ("NotReadable", Acts.ADMIN, Verdict.UNKNOWN)
    assert city.finding.message == "you may not list instances in demo"


@pytest.mark.parametrize("gap", [Gap.DENIED, Gap.AWAY])
def test_deployments_that_cannot_be_read_prove_nothing(gap: Gap) -> None:
    answer = why(seen(user=True, deployments=gap), NOW)
    assert {city.verdict for city in answer.cities} == {Verdict.UNKNOWN}


# Since when


def since_of(answer: Answer) -> tuple[datetime | None, bool]:
    finding = dfw(answer).finding
    assert finding is not None
    return finding.since, finding.exact


AMS = (instance("AMS", 0), instance("AMS", 1))
CRASH = troubled(ready("InstanceCrashing"))


def test_a_reason_began_with_the_first_time_of_its_newest_event() -> None:
    events = (
        event("shop-default-dfw-1", "InstanceCrashing", first=NOW - timedelta(hours=2), last=NOW - timedelta(hours=1)),
        event("shop-default-dfw-1", "InstanceCrashing", first=NOW - timedelta(minutes=2), last=NOW),
        event("shop-default-dfw-1", "ImageUnavailable", first=NOW),
        event("shop-default-dfw-0", "InstanceCrashing", first=NOW),
    )
    assert since_of(why(seen(**CRASH, events=events), NOW)) == (NOW - timedelta(minutes=2), True)


def test_without_an_event_only_the_time_since_it_was_ready_is_known() -> None:
    answer = why(seen(**CRASH), NOW)
    assert since_of(answer) == (AGO, False)
    assert answer.sentence == (
        "shop is held up in DFW by a process that keeps exiting (1 of 2 instances), not ready for 4m. You can act."
    )


def test_the_sentence_does_not_depend_on_events() -> None:
    events = (event("shop-default-dfw-1", "InstanceCrashing", first=NOW - timedelta(minutes=2), last=NOW),)
    assert why(seen(**CRASH, events=events), NOW).sentence == why(seen(**CRASH), NOW).sentence


@pytest.mark.parametrize("moment", [datetime(1970, 1, 1, tzinfo=UTC), NOW + timedelta(seconds=61)])
def test_a_time_that_cannot_be_true_gives_no_age(moment: datetime) -> None:
    odd = troubled(condition("Ready", "False", "InstanceCrashing", since=moment), creationTimestamp=timestamp(moment))
    answer = why(seen(**odd), NOW)
    assert since_of(answer)[0] is None
    assert " for " not in answer.sentence
    is_ahead = moment > NOW
    assert any("ClockAhead" in note for note in answer.notes) is is_ahead


# Verdicts


@pytest.mark.parametrize(
    ("seconds", "verdict", "acts"),
    [(0, Verdict.WAITING, Acts.WAIT), (9, Verdict.WAITING, Acts.WAIT), (10, Verdict.BLOCKED, Acts.PLATFORM)],
)
def test_nobody_is_blamed_within_the_normal_time_of_a_hop(seconds: int, verdict: Verdict, acts: Acts) -> None:
    fresh = {"workload": workload(generation=2), "changed": NOW - timedelta(seconds=seconds)}
    city = dfw(why(seen(user=True, **fresh), NOW))
    assert (city.verdict, city.acts) == (verdict, acts)


@pytest.mark.parametrize(
    ("minutes", "verdict", "acts"),
    [(14, Verdict.WAITING, Acts.WAIT), (15, Verdict.STALLED, Acts.STALLED), (16, Verdict.STALLED, Acts.STALLED)],
)
def test_a_wait_is_stalled_after_its_normal_time(minutes: int, verdict: Verdict, acts: Acts) -> None:
    began = NOW - timedelta(minutes=minutes)
    gated = condition("Ready", "False", "SchedulingGatesPresent", since=began)
    old = condition("Ready", "True", "Available", since=NOW - timedelta(hours=1))
    parts = troubled(gated, gates=["Network"])
    parts["instances"] = (instance("DFW", 0, old), instance("DFW", 1, gated, gates=["Network"]), *AMS)
    answer = why(seen(user=True, **parts), NOW)
    assert (dfw(answer).verdict, dfw(answer).acts) == (verdict, acts)
    if verdict is Verdict.STALLED:
        assert answer.sentence == (
            f"shop is stuck in DFW: the network is being set up, for {minutes}m; normal under 15m. "
            "No cause was reported."
        )


def test_a_rollout_that_progresses_is_not_stalled() -> None:
    gated = condition("Ready", "False", "SchedulingGatesPresent", since=NOW - timedelta(minutes=20))
    moved = condition("Ready", "True", "Available", since=NOW - timedelta(minutes=1))
    parts = troubled(gated, gates=["Network"])
    parts["instances"] = (instance("DFW", 0, moved), instance("DFW", 1, gated, gates=["Network"]), *AMS)
    assert dfw(why(seen(user=True, **parts), NOW)).verdict is Verdict.WAITING


def test_the_workload_is_as_bad_as_its_worst_city_and_degraded_if_another_is_fine() -> None:
    assert why(seen(**CRASH), NOW).verdict is Verdict.DEGRADED
    both = tuple(instance(city, 1, ready("InstanceCrashing")) for city in CITIES)
    short = tuple(deployment(city, 1) for city in CITIES)
    assert why(seen(user=True, deployments=short, instances=both), NOW).verdict is Verdict.BLOCKED


def test_a_reason_that_is_not_known_is_shown_as_received() -> None:
    answer = why(seen(**troubled(ready("SomethingNew", "the moon is full"))), NOW)
    finding = dfw(answer).finding
    assert finding is not None
    assert (finding.reason, finding.message, dfw(answer).acts) == ("SomethingNew", "the moon is full", Acts.UNKNOWN)


# Folding


def test_cities_with_the_same_cause_are_one_block() -> None:
    both = tuple(
        instance(city, 1, ready("ImageUnavailable", f"The image of {city} 17 cannot be pulled")) for city in CITIES
    )
    short = tuple(deployment(city, 1) for city in CITIES)
    answer = why(seen(user=True, deployments=short, instances=both), NOW)
    assert [[city.place.city for city in block.cities] for block in answer.blocks] == [["DFW", "AMS"]]
    assert answer.sentence == (
        "shop is held up in DFW and AMS by its image (2 of 4 instances), not ready for 4m. You can act."
    )


def test_what_the_reader_can_act_on_comes_first() -> None:
    cities = ("DFW", "AMS", "SIN")
    broken = (
        instance("DFW", 1, ready("Provisioning")),
        instance("AMS", 1, ready("SchedulingGatesPresent"), gates=["Other"]),
        instance("SIN", 1, ready("InstanceCrashing")),
    )
    whole = of_project(everything(cities))
    short = tuple(deployment(city, 1) for city in cities)
    answer = why(replace(whole, deployments=short, instances=broken), NOW)
    assert [block.first.acts for block in answer.blocks] == [Acts.YOU, Acts.PLATFORM, Acts.WAIT]
    assert answer.sentence.endswith("You can act. 2 other causes.")


# Contradictions


def test_a_status_that_answers_an_earlier_request_is_said_to() -> None:
    answer = why(seen(user=True, workload=workload(generation=2), changed=NOW), NOW)
    assert "What is shown answers an earlier request." in answer.notes
    assert {city.ready for city in answer.cities} == {None}


def test_instances_count_more_than_their_summary() -> None:
    behind = (deployment("DFW", 1), deployment("AMS"))
    answer = why(seen(user=True, deployments=behind), NOW)
    assert "The summary of DFW is behind its instances." in answer.notes


def test_ages_count_from_the_servers_clock_when_ours_differs() -> None:
    for ahead in (-3600, 3600):
        answer = why(seen(**CRASH, server_time=NOW), NOW + timedelta(seconds=ahead))
        assert "not ready for 4m" in answer.sentence
        assert any("clocks" in note for note in answer.notes)
    assert why(seen(**CRASH, server_time=NOW - timedelta(seconds=5)), NOW).notes == ()


# The lease of the manager


def lease(renewed: datetime) -> Any:
    spec = {"holderIdentity": "manager-7", "leaseDurationSeconds": 3600, "renewTime": timestamp(renewed)}
    return read(LEASE, {"metadata": {"name": "x"}, "spec": spec})


def test_a_lease_that_is_not_renewed_is_named() -> None:
    silent = {"workload": workload(generation=2), "changed": AGO, "lease": lease(NOW - timedelta(minutes=10))}
    finding = dfw(why(seen(**silent), NOW)).finding
    assert finding is not None
    assert (finding.hop, finding.reason) == (Hop.MANAGER, "LeaseStale")
    assert finding.message == "the lease is held by manager-7 and is not renewed"


def test_a_lease_that_is_renewed_explains_nothing() -> None:
    silent = {"workload": workload(generation=2), "changed": AGO, "lease": lease(NOW - timedelta(seconds=5))}
    finding = dfw(why(seen(**silent), NOW)).finding
    assert finding is not None
    assert finding.reason == "Unanswered"


# Deletion

GOING: dict[str, Any] = {"deletionTimestamp": timestamp(NOW - timedelta(minutes=3))}


def test_a_deletion_waits_for_a_mark_of_somebody_else() -> None:
    held = workload(**GOING, finalizers=["example.com/hold"])
    answer = why(seen(user=True, workload=held, deployments=(), instances=()), NOW)
    assert (answer.verdict, answer.cities[0].acts) == (Verdict.DELETING, Acts.YOU)
    assert answer.sentence == "shop is being deleted: it waits for example.com/hold, for 3m. You can act."


@pytest.mark.parametrize(("minutes", "acts"), [(1, Acts.WAIT), (3, Acts.STALLED)])
def test_a_deletion_waits_for_its_cities(minutes: int, acts: Acts) -> None:
    going: dict[str, Any] = {"deletionTimestamp": timestamp(NOW - timedelta(minutes=minutes))}
    parts = {"workload": workload(**going), "deployments": (deployment("DFW", **going),), "instances": ()}
    answer = why(seen(user=True, **parts), NOW)
    assert answer.sentence.startswith(f"shop is being deleted: it waits for DFW, for {minutes}m.")
    assert [city.acts for city in answer.cities] == [acts]


def test_an_operator_sees_which_provider_holds_an_instance() -> None:
    held = instance("DFW", 0, **GOING, finalizers=["compute.datumapis.com/pods-provider"])
    parts = {
        "workload": workload(**GOING),
        "deployments": (deployment("DFW", **GOING),),
        **with_site(instances=(held,)),
    }
    answer = why(seen(**parts), NOW)
    assert (answer.cities[0].acts, answer.verdict) == (Acts.PLATFORM, Verdict.DELETING)
    assert "pods-provider" in answer.sentence


# One instance


def test_an_instance_is_asked_about_from_its_own_hop_on() -> None:
    answer = why(seen(**CRASH), NOW, "shop-default-dfw-1")
    assert (answer.kind, answer.name, len(answer.cities)) == ("Instance", "shop-default-dfw-1", 1)
    assert answer.cities[0].path[0].hop is Hop.INSTANCES
    assert why(seen(**CRASH), NOW, "shop-default-dfw-0").verdict is Verdict.FINE


def test_objects_that_make_no_sense_are_an_answer_too() -> None:
    broken = read(LEASE, {"metadata": {"name": "x"}})
    odd = replace(everything().workload, spec_json=broken.spec_json)
    answer = why(seen(workload=odd), NOW)
    assert answer.verdict is Verdict.UNKNOWN
    assert answer.sentence.startswith("It cannot be said what holds up shop")
