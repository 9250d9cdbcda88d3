// The JSON API: documents that are read once or followed, and actions.

export class Refused extends Error {
  constructor(status, message) { super(message); this.status = status }
}

const address = (path, query = {}) => {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "")
  return given.length ? `${path}?${new URLSearchParams(given)}` : path
}
export const api = (...parts) => `/api/${parts.map(encodeURIComponent).join("/")}`

async function request(url, options) {
  let response
  try { response = await fetch(url, options) } catch {
    throw new Refused(0, "The console does not answer. It may have been stopped: start it again with `headrace console`.")
  }
  const text = await response.text()
  let value
  try { value = JSON.parse(text) } catch { value = { error: text } }
  if (!response.ok) throw new Refused(response.status, value.error ?? response.statusText)
  return value
}

export const read = (path, query) => request(address(path, query), {})
export const send = (path, body = {}) =>
  request(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) })

// Calls `show(document, isNew)` with every document of a resource, and about every two seconds in between.
// `fail(error)` is called while it cannot be read, and `fail(null)` when it can be read again. Returns a
// function that ends it.
export function follow(path, query, show, fail) {
  let source, timer, last, ended = false
  const open = () => {
    source = new EventSource(address(path, query))
    source.addEventListener("document", event => { fail(null); last = JSON.parse(event.data); show(last, true) })
    source.addEventListener("same", () => { fail(null); show(last, false) })
    source.addEventListener("problem", event => fail(new Refused(502, JSON.parse(event.data).error)))
    source.addEventListener("end", event => fail(new Refused(502, JSON.parse(event.data).error)))
    source.addEventListener("error", async () => {
      if (source.readyState !== EventSource.CLOSED) return  // the browser connects again
      source.close()
      try { await read(path, query) } catch (error) { if (!ended) fail(error) }
      if (!ended) timer = setTimeout(open, 3000)
    })
  }
  // A tab that is not visible needs no stream: browsers allow six connections to a server.
  const onVisibility = () => { clearTimeout(timer); source.close(); if (!document.hidden) open() }
  document.addEventListener("visibilitychange", onVisibility)
  open()
  return () => { ended = true; clearTimeout(timer); source.close(); document.removeEventListener("visibilitychange", onVisibility) }
}
