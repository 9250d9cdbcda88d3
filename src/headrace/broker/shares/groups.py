"""The share groups of a broker: their members, their settings, and clocks that notice who falls silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from headrace.broker.groups.deadlines import DeadlineTimer
from headrace.broker.shares.membership import LEAVE, Reply, ShareGroup
from headrace.broker.shares.settings import ShareGroupConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from headrace.broker.clock import Clock
    from headrace.broker.shares.membership import Assignment, Beat
    from headrace.broker.shares.settings import ShareSettings
    from headrace.broker.shares.store import ShareStore


class ShareGroups:
    """All share groups, by name."""

    def __init__(
        self,
        store: ShareStore,
        clock: Clock,
        settings: ShareSettings,
        *,
        assign: Callable[[Sequence[str]], Assignment],
        on_silence: Callable[[str, str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._settings = settings
        self._assign = assign
        self._on_silence = on_silence
        self._groups: dict[str, ShareGroup] = {}
        self._configs: dict[str, ShareGroupConfig] = {}
        self._timers: dict[str, DeadlineTimer] = {}

    def load(self, groups: Iterable[str], configs: Mapping[str, ShareGroupConfig]) -> None:
        """Take over what was stored; members join again by themselves."""
        self._configs = dict(configs)
        for group_id in groups:
            self._adopt(ShareGroup(group_id))

    def close(self) -> None:
        """Stop all clocks."""
        for timer in self._timers.values():
            timer.stop()

    def __contains__(self, group_id: object) -> bool:
        return group_id in self._groups

    def all(self) -> list[ShareGroup]:
        """All share groups by name."""
        return [group for _, group in sorted(self._groups.items())]

    def get(self, group_id: str) -> ShareGroup | None:
        """The group of that name."""
        return self._groups.get(group_id)

    def config(self, group_id: str) -> ShareGroupConfig:
        """The settings of a group; one that is not there yet can have some."""
        return self._configs.get(group_id) or ShareGroupConfig()

    def configured(self) -> list[str]:
        """The groups that have settings of their own."""
        return [group_id for group_id, config in self._configs.items() if config.overrides]

    def configure(self, group_id: str, configs: Mapping[str, str]) -> ShareGroupConfig:
        """Replace the settings of a group."""
        config = ShareGroupConfig.parse(configs)
        self._store.save_config(group_id, configs)
        self._configs[group_id] = config
        return config

    def check_idle(self, group_id: str) -> ErrorCode:
        """Whether what a group has done may be changed: it must be there, and have no members."""
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        return ErrorCode.non_empty_group if group.members else ErrorCode.none

    def remove(self, group_id: str) -> None:
        """Forget a group without members."""
        self._store.forget_group(group_id)
        self._timers.pop(group_id).stop()
        del self._groups[group_id]

    def beat(self, group_id: str, beat: Beat) -> Reply:
        """Let a member join, go on, or leave."""
        group = self._groups.get(group_id)
        if beat.epoch == LEAVE:
            if group is None or not group.leave(beat.member_id):
                return _UNKNOWN
            # Its session lives on until it closes it: clients acknowledge their last records after this.
            return Reply(epoch=LEAVE)
        if group is None:
            if beat.epoch > 0:
                return _UNKNOWN
            group = self.create(group_id)
            if group is None:
                return Reply(error=ErrorCode.group_max_size_reached, message="there are too many groups")
        expires_at_ms = self._clock.now_ms() + self.config(group_id).session_timeout_ms
        reply = group.beat(beat, expires_at_ms, self._settings.max_members, self._assign)
        self._timers[group_id].set(group.next_deadline_ms())
        return reply

    def create(self, group_id: str) -> ShareGroup | None:
        """A new group without members; None when there are too many."""
        if len(self._groups) >= self._settings.max_groups:
            return None
        group = ShareGroup(group_id)
        self._store.save_group(group_id)
        self._adopt(group)
        return group

    def _adopt(self, group: ShareGroup) -> None:
        self._groups[group.id] = group
        self._timers[group.id] = DeadlineTimer(self._clock, lambda: self._expire(group))

    def _expire(self, group: ShareGroup) -> None:
        for member in group.expired(self._clock.now_ms()):
            group.leave(member)
            self._on_silence(group.id, member)
        self._timers[group.id].set(group.next_deadline_ms())


_UNKNOWN = Reply(error=ErrorCode.unknown_member_id, message="the member is not in the group")
