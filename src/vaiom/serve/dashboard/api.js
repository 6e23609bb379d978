// Requests to the service that this page came from.
const KEY = "vaiom-key";

export class Refused extends Error {
  constructor(status, error) {
    super([error.problem, error.fix].filter(Boolean).join(": "));
    this.status = status;
  }
}

export const useKey = (key) => sessionStorage.setItem(KEY, key);

export async function get(path, posted) {
  const key = sessionStorage.getItem(KEY), headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (posted) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { headers, method: posted ? "POST" : "GET", body: JSON.stringify(posted) });
  const body = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, body.error);
  return body;
}
