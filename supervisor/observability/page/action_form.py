"""Describes what can be asked for on the page, and reads its form. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from supervisor.domain.asking import Asked, BeginDrain, BeginDrill, EndDrain, EndDrill, SteerJob
from supervisor.domain.ids import Host, JobName, Source
from supervisor.domain.job import RequestKind
from supervisor.domain.notice import LONGEST_DRAIN_SECONDS, LONGEST_SECONDS, OPERATOR, SHORTEST_SECONDS, SIMULATED
from supervisor.ingest.errors import MalformedError

_MAX_NAME = 600
_MAX_REASON = 256


class PageAction(StrEnum):
    """What can be asked for; the values are in addresses."""

    SUSPEND = "suspend"
    STOP = "stop"
    RESUME = "resume"
    DRILL = "drill"
    END_DRILL = "end-drill"
    DRAIN = "drain"
    UNDRAIN = "undrain"


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionText:
    """What an action is called, and its consequences.

    Attributes:
        title: Says in the imperative what is asked for; the name of the subject follows.
        done: The same in the past, after the name of a person.
        consequences: What will happen, in sentences.
        subject: `job` or `node`.
        minutes: The lead that the form proposes; None: it has none.
        longest: The longest lead, in minutes.
        reason: Whether people can say why.
        end: The action that ends it.
        source: The source of the notices that it announces.
    """

    title: str
    done: str
    consequences: str
    subject: str = "job"
    minutes: float | None = None
    longest: float = 0.0
    reason: bool = False
    end: "PageAction | None" = None
    source: Source | None = None


ACTIONS: Mapping[PageAction, ActionText] = {
    PageAction.SUSPEND: ActionText(
        title="Suspend job",
        done="asked to suspend it",
        consequences="The job is saved as before a reclaim, and its workers are released. It stays suspended until "
        "somebody resumes it.",
        reason=True,
    ),
    PageAction.STOP: ActionText(
        title="Stop job",
        done="asked to stop it",
        consequences="The job is saved as before a reclaim, and then ended for good. It can be resumed only until it "
        "has ended.",
        reason=True,
    ),
    PageAction.RESUME: ActionText(
        title="Resume job",
        done="asked to resume it",
        consequences="The request to suspend or to stop the job is withdrawn. It continues from its checkpoint as soon "
        "as there are enough hosts.",
    ),
    PageAction.DRILL: ActionText(
        title="Hold a drill on node",
        done="began a drill on it",
        consequences="Everything happens as if the node were reclaimed: jobs on it lose these workers, or are saved "
        "and suspended. Nothing is taken away, and the drill ends by itself.",
        subject="node",
        minutes=2.0,
        longest=LONGEST_SECONDS / 60,
        end=PageAction.END_DRILL,
        source=SIMULATED,
    ),
    PageAction.END_DRILL: ActionText(
        title="End the drill on node",
        done="ended the drill on it",
        consequences="The node can be used again at once.",
        subject="node",
    ),
    PageAction.DRAIN: ActionText(
        title="Drain node",
        done="drained it",
        consequences="Jobs on the node lose these workers, or are saved and suspended, before the time is over. The "
        "node is not used until somebody ends the drain.",
        subject="node",
        minutes=10.0,
        longest=LONGEST_DRAIN_SECONDS / 60,
        end=PageAction.UNDRAIN,
        source=OPERATOR,
        reason=True,
    ),
    PageAction.UNDRAIN: ActionText(
        title="End the drain of node",
        done="ended the drain of it",
        consequences="The node can be used again at once.",
        subject="node",
    ),
}

_REQUESTS = {PageAction.SUSPEND: RequestKind.SUSPEND, PageAction.STOP: RequestKind.STOP, PageAction.RESUME: None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionForm:
    """The fields of a form; with an empty `name` it asks for the name of the subject, too."""

    action: PageAction
    name: str = ""
    minutes: float | None = None
    reason: str = ""

    @classmethod
    def read(cls, action: str, given: Mapping[str, str]) -> "ActionForm":
        """Reads the fields of a form, or the query of an address.

        Raises:
            MalformedError: A field has none of its values. The message is a sentence.
        """
        if action not in set(PageAction):
            raise MalformedError("There is no such action.")
        kind = PageAction(action)
        text = ACTIONS[kind]
        name, reason = given.get(text.subject, "").strip(), given.get("reason", "").strip()
        if len(name) > _MAX_NAME:
            raise MalformedError(f"A name has at most {_MAX_NAME} letters.")
        if not name.isprintable() or not reason.isprintable():
            raise MalformedError("Names and reasons have no control characters.")
        if len(reason) > _MAX_REASON:
            raise MalformedError(f"A reason has at most {_MAX_REASON} letters.")
        return cls(action=kind, name=name, minutes=_minutes(text, given), reason=reason if text.reason else "")

    @property
    def text(self) -> ActionText:
        """The words about the action."""
        return ACTIONS[self.action]

    @property
    def subject(self) -> str:
        """The subject of an entry of the history."""
        return f"{self.text.subject}/{self.name}"

    def asked(self) -> Asked:
        """What the form asks for.

        Raises:
            MalformedError: It names nothing.
        """
        if not self.name:
            raise MalformedError(f"The form names no {self.text.subject}.")
        node, lead = Host(self.name), (self.minutes or 0.0) * 60
        match self.action:
            case PageAction.SUSPEND | PageAction.STOP | PageAction.RESUME:
                return SteerJob(job=JobName(self.name), kind=_REQUESTS[self.action], reason=self.reason)
            case PageAction.DRILL:
                return BeginDrill(node=node, lead=lead)
            case PageAction.END_DRILL:
                return EndDrill(node=node)
            case PageAction.DRAIN:
                return BeginDrain(node=node, lead=lead, reason=self.reason)
            case PageAction.UNDRAIN:
                return EndDrain(node=node)

    @property
    def purposes(self) -> tuple[str, str]:
        """What the form is for: the action on that subject; one without a subject is for that action on any."""
        return f"{self.action} {self.subject}", f"{self.action} {self.text.subject}/"


def _minutes(text: ActionText, given: Mapping[str, str]) -> float | None:
    if text.minutes is None:
        return None
    try:
        minutes = float(given.get("minutes", text.minutes))
    except ValueError as error:
        raise MalformedError("The time is a number of minutes.") from error
    if not SHORTEST_SECONDS / 60 <= minutes <= text.longest:
        raise MalformedError(f"The time is between {SHORTEST_SECONDS / 60:.2g} and {text.longest:g} minutes.")
    return minutes
