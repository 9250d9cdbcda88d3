// Consumer groups: lag, members, and seeking.

import { api, send } from "./api.js"
import { ask, badge, code, count, el, empty, link, number, rate, Rates, Table, tiles } from "./dom.js"

export function groups({ main, live }) {
  const rates = new Rates(), filter = el("input", { type: "search", name: "filter", placeholder: "Group or topic", "aria-label": "Filter groups" })
  const table = new Table([
    { title: "Group", class: "wrap", cell: row => link(row.group, "groups", row.group), sort: row => row.group },
    { title: "State", cell: row => badge(row.state), sort: row => row.state },
    { title: "Lag", class: "number", cell: row => number(row.lag), sort: row => row.lag },
    { title: "Reads", class: "number", cell: row => rate(row.rate), sort: row => row.rate ?? 0 },
    { title: "Members", class: "number", cell: row => number(row.members), sort: row => row.members },
    { title: "Topics", class: "wrap", cell: row => row.topics.flatMap((topic, at) => [at ? ", " : null, link(topic, "topics", topic)]) },
  ], { label: "Consumer groups", key: row => row.group, empty: () => filter.value ? empty("No group has this name") : empty("There are no consumer groups yet", "A consumer creates one: ", code("headrace consume orders --group billing")) })
  let rows = []
  const update = () => table.update(rows.filter(row => [row.group, ...row.topics].some(name => name.includes(filter.value))))
  filter.addEventListener("input", update)
  main.append(el("div", { class: "head" }, el("h1", {}, "Consumer groups")), el("div", { class: "bar" }, el("div", { class: "grow" }, filter)), table.node)
  live("/api/groups", {}, document => { rows = document.groups.map(row => ({ ...row, rate: rates.note(row.group, row.committed ?? 0) })); update() })
}

export function group({ main, item, live, about }) {
  const figures = el("div", { class: "tiles" }), rates = new Rates()
  const seeker = !about.read_only && el("button", { onclick: () => seek(item) }, "Seek …")
  const partitions = new Table([
    { title: "Topic", class: "wrap", cell: row => link(row.topic, "topics", row.topic), sort: row => row.topic },
    { title: "Partition", class: "number", cell: row => count(row.partition) },
    { title: "Committed", class: "number", cell: row => row.committed === null ? el("span", { class: "soft" }, "never") : count(row.committed) },
    { title: "End", class: "number", cell: row => count(row.end) },
    { title: "Lag", class: "number", cell: row => number(row.lag), sort: row => row.lag },
    { title: "Member", class: "mono one", cell: row => row.member ?? "" },
  ], { label: "Partitions of the group", key: row => `${row.topic}/${row.partition}`, empty: empty("The group has committed no offsets yet") })
  const members = new Table([
    { title: "Client", cell: row => row.client }, { title: "Host", cell: row => row.host },
    { title: "Member", class: "mono one", cell: row => row.member }, { title: "Partitions", class: "wrap", cell: row => row.partitions.join(", ") },
  ], { label: "Members", key: row => row.member, empty: empty("No consumer runs", "The offsets are kept: a consumer that joins continues after them.") })
  main.append(el("div", { class: "head" }, el("div", { class: "crumb" }, link("Consumer groups", "groups")), el("h1", {}, item), el("div", { class: "actions" }, seeker)), figures,
    el("section", {}, el("h2", {}, "Partitions"), partitions.node), el("section", {}, el("h2", {}, "Members"), members.node))
  live(api("groups", item), {}, document => {
    const speed = rates.note("all", document.partitions.reduce((sum, part) => sum + (part.committed ?? 0), 0))
    const shown = rate(speed)
    tiles(figures, [["State", document.state], ["Lag", count(document.lag), document.lag > 0 && speed === 0 ? "warn" : ""], ["Reads", shown.textContent ?? shown], ["Members", count(document.members.length)], ["Assignor", document.assignor || "–"], ["Coordinator", document.coordinator === null ? "–" : `broker ${document.coordinator}`]])
    partitions.update(document.partitions)
    members.update(document.members)
    if (seeker) { seeker.disabled = !["empty", "dead"].includes(document.state); seeker.title = seeker.disabled ? "Stop the consumers first: they would overwrite the change" : "Move the committed offsets" }
  })
}

function seek(item) {
  ask({ title: `Seek ${item}`, button: "Move offsets", about: ["All partitions of the group move. Its consumers read from there when they start."], fields: [
    { name: "to", label: "To: start, end, an offset, a time (2026-01-31T12:00), or a time ago (-5m)", required: true },
    { name: "topic", label: "Only this topic (empty: all)" },
  ], send: async values => {
    const { moves } = await send(api("groups", item, "seek"), { to: values.to, topic: values.topic || null })
    return `Moved ${moves.length} partition${moves.length === 1 ? "" : "s"}`
  } })
}
