"""Makes a ResourceInterpreterCustomization of Karmada, with scripts in Lua, from what each kind of job declares."""

from collections.abc import Iterable
from textwrap import indent

from supervisor.cluster.annotations import LAST_CHECKPOINT, NO_CAPACITY
from supervisor.jobs.kind import AnyKind, HubView, WrittenField

_RETAINED = """\
local fields = {{
{fields}}}

-- Leaves the field at a path as it is in the member.
local function keep(want, seen, path, at, only)
  local name = path[at]
  if type(seen) ~= "table" then
    return
  end
  local key = string.match(name, "^%[(.+)%]$")
  if key ~= nil then
    for _, to in ipairs(want) do
      for _, from in ipairs(seen) do
        if to[key] == from[key] then
          keep(to, from, path, at + 1, only)
        end
      end
    end
    return
  end
  -- Some operators take a role's name with any letters in upper case.
  local function spelled(object)
    if object[name] == nil then
      for other in pairs(object) do
        if string.lower(other) == string.lower(name) then
          return other
        end
      end
    end
    return name
  end
  local to, from = spelled(want), spelled(seen)
  if at == #path then
    if only == nil or seen[from] == only then
      want[to] = seen[from]
    end
    return
  end
  local part = want[to] or {{}}
  keep(part, seen[from], path, at + 1, only)
  if next(part) ~= nil then
    want[to] = part
  end
end

function Retain(desiredObj, observedObj)
  local marks = observedObj.metadata.annotations or {{}}
  for _, each in ipairs(fields) do
    if each.mark == nil or marks[each.mark] ~= nil then
      keep(desiredObj.spec, observedObj.spec, each.path, 1, each.only)
    end
  end
  return desiredObj
end
"""

_HEALTH = """\
local failures = {{{failures}}}

local function failed(status)
{failed}end

function InterpretHealth(observedObj)
  local annotations = observedObj.metadata.annotations or {{}}
  local labels = observedObj.metadata.labels or {{}}
  local name = "{checkpoint}"
  if annotations["{given_up}"] == "true" then
    return false
  end
  -- The hub takes the label away once the job is healthy, so a supervisor has to copy it first.
  if labels[name] ~= nil and annotations[name] == nil then
    return false
  end
  return not failed(observedObj.status or {{}})
end
"""

_FAILED_CONDITION = """\
  for _, each in ipairs(status.conditions or {}) do
    if failures[each.type] and each.status == "True" then
      return true
    end
  end
  return false
"""

_REFLECTION = """\
function ReflectStatus(observedObj)
  local status = observedObj.status or {{}}
  local annotations = observedObj.metadata.annotations or {{}}
  -- Without a value the hub would not move the job at all.
  status.lastCheckpoint = annotations["{checkpoint}"] or "none"
  return status
end
"""

_AGGREGATION = """\
function AggregateStatus(desiredObj, statusItems)
  -- A job is in one cluster; its status there is shown as it is.
  if statusItems ~= nil and #statusItems == 1 and statusItems[1].status ~= nil then
    desiredObj.status = statusItems[1].status
    desiredObj.status.lastCheckpoint = nil
  end
  return desiredObj
end
"""


def customization(kind: AnyKind) -> str:
    """Returns the customization for the jobs of a kind, in YAML."""
    view, resource = kind.hub, kind.resource
    scripts = {
        "retention": _RETAINED.format(fields="".join(_fields(view))),
        "healthInterpretation": _HEALTH.format(
            failures=", ".join(f'["{each}"] = true' for each in sorted(view.failures)),
            failed=_failed(view),
            checkpoint=LAST_CHECKPOINT,
            given_up=NO_CAPACITY,
        ),
        "statusReflection": _REFLECTION.format(checkpoint=LAST_CHECKPOINT),
        **({} if view.hub_aggregates else {"statusAggregation": _AGGREGATION}),
    }
    return (
        "# Written by `make chart` from what the kind declares.\n"
        "apiVersion: config.karmada.io/v1alpha1\n"
        "kind: ResourceInterpreterCustomization\n"
        f"metadata:\n  name: job-supervisor-{kind.name}\n"
        f"spec:\n  target:\n    apiVersion: {resource.api_version}\n    kind: {resource.kind}\n  customizations:\n"
        + "".join(f"    {name}:\n      luaScript: |\n{indent(text, ' ' * 8)}" for name, text in scripts.items())
    )


def _fields(view: HubView) -> Iterable[str]:
    always = (f"  {{path = {_path(path)}}},\n" for path in view.defaulted)
    return (*(_field(each) for each in view.written), *always)


def _field(field: WrittenField) -> str:
    only = "" if field.only is None else f", only = {str(field.only).lower()}"
    return f'  {{path = {_path(field.path)}, mark = "{field.mark}"{only}}},\n'


def _path(path: Iterable[str]) -> str:
    return "{" + ", ".join(f'"{name}"' for name in path) + "}"


def _failed(view: HubView) -> str:
    """The body of the Lua function that says whether a job has failed for good."""
    final = f"  if status.{view.final} == nil then\n    return false\n  end\n" if view.final else ""
    if not view.phase:
        return final + _FAILED_CONDITION
    parent = "status"
    for name in view.phase[:-1]:
        parent = f"({parent}.{name} or {{}})"
    return f'{final}  return failures[{parent}.{view.phase[-1]} or ""] == true\n'
